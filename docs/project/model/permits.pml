/* A topic of which at most MAX messages may run over all instances: N messages of different
 * objects, W instances. A permit is the flag itself: who claims locks the record of the limit, then
 * counts the rows at 1, and unlocks with the COMMIT of its flags (Permits.flag).
 *
 * An instance may be killed (KILLS), lose its lease while its handler runs on (EXPIRIES), or get no
 * answer to a COMMIT (UNKNOWN): then no lane knows the row that it has flagged, and it releases it.
 * Checked: never more than MAX rows at 1; never more than MAX handlers of instances that hold their
 * lease; every message ends (LIVENESS).
 *   B_NOLOCK    nothing is locked         B_EARLY     rows are counted before the lock
 *   B_UNLOCK    it is unlocked before the COMMIT of the flags
 *   B_FOLLOWER  a settle flags a message of the topic behind one of another topic
 *   B_LIVE      rows of instances without a lease are not counted
 *   B_BEFORE    the outcome is written before the handler has ended
 *   B_KEPT      rows of dead instances are not given back
 */
#ifndef N
#define N 3
#endif
#ifndef W
#define W 2
#endif
#ifndef MAX
#define MAX 1
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef EXPIRIES
#define EXPIRIES 0
#endif
#ifndef UNKNOWN
#define UNKNOWN 0
#endif
#define NEW 0
#define ONE 1
#define DONE 2
byte status[N+1];
byte own[N+1];          /* whose flag: i, or W+i after instance i has lost its first lease */
bool live[2*W+1];       /* leases */
byte hand[W+1];         /* the message whose handler runs in an instance, 0 = none */
bool sure[W+1];         /* it runs under a lease that the instance holds */
byte locked; byte kills; byte expiries; byte unknown;
byte k; byte at1; byte running;

inline check() {
  at1=0; k=1;
  do :: k<=N -> at1=at1+(status[k]==ONE); k++ :: else -> break od;
  running=0; k=1;
  do :: k<=W -> running=running+(hand[k]!=0 && sure[k]); k++ :: else -> break od;
  k=0; assert(at1<=MAX); assert(running<=MAX); at1=0; running=0 }
#ifdef B_LIVE
#define COUNTED(m) (status[m]==ONE && live[own[m]])
#else
#define COUNTED(m) (status[m]==ONE)
#endif
#define MINE(m) (status[m]==ONE && own[m]==me)
#define UNKNOWN_ROW (MINE(1) || MINE(2) || MINE(N))
#define SEES (status[1]==NEW || status[2]==NEW || status[N]==NEW)
inline count() {
  n=0; k=1;
  do :: k<=N -> n=n+COUNTED(k); k++ :: else -> break od;
  k=0 }
inline unlock() { if :: locked==i -> locked=0 :: else fi }

proctype Instance(byte i) {
  byte me=i; byte m; byte n; byte pc;   /* 0 idle, 1 locked, 2 counted, 3 unlocked, 4 lane, 5 runs */
end:
  do
  /* the claim: a row of the look, a transaction; not before what it may have flagged is known */
#ifdef B_EARLY
  :: atomic { pc==0 -> count(); pc=6 }
  :: atomic { pc==6 && locked==0 -> locked=i; pc=2 }
#elif defined(B_NOLOCK)
  :: atomic { pc==0 -> pc=1 }
#else
  :: atomic { pc==0 && locked==0 && SEES && !UNKNOWN_ROW -> locked=i; pc=1 }
#endif
  :: atomic { pc==1 -> count(); pc=2 }
#ifdef B_UNLOCK
  :: atomic { pc==2 -> unlock(); pc=3 }
#endif
  :: atomic { pc==2 && n>=MAX -> n=0; unlock(); pc=0 }
  :: atomic { (pc==2 || pc==3) && n<MAX ->
       m=1;
       do :: m<N && status[m]!=NEW -> m++ :: else -> break od;
       if
       :: status[m]==NEW -> status[m]=ONE; own[m]=me; pc=4; check()
       :: else -> m=0; pc=0
       fi;
       n=0; unlock();
       if
#if UNKNOWN > 0
       :: pc==4 && unknown<UNKNOWN -> unknown++; m=0; pc=0
#endif
       :: skip
       fi }
  /* a row flagged by us that no lane knows, while no claim is in flight */
  :: atomic { pc==0 && UNKNOWN_ROW ->
       k=1;
       do :: k<=N -> if :: MINE(k) -> status[k]=NEW; own[k]=0 :: else fi; k++ :: else -> break od;
       k=0 }
  /* the lane */
  :: atomic { pc==4 && live[me] -> hand[i]=m; sure[i]=true; pc=5; check() }
  :: atomic { pc==4 && !MINE(m) -> m=0; pc=0 }
#ifdef B_BEFORE
  :: atomic { pc==5 && MINE(m) -> status[m]=DONE; own[m]=0; pc=7 }
  :: atomic { pc==7 -> hand[i]=0; sure[i]=false; m=0; pc=0 }
#else
  :: atomic { pc==5 && MINE(m) -> hand[i]=0; sure[i]=false; status[m]=DONE; own[m]=0; m=0; pc=0 }
#endif
  :: atomic { pc==5 && !MINE(m) -> hand[i]=0; sure[i]=false; m=0; pc=0 }
#ifdef B_FOLLOWER
  :: atomic { status[N]==NEW -> status[N]=ONE; own[N]=me; check(); status[N]=DONE; own[N]=0 }
#endif
#if EXPIRIES > 0
  :: atomic { me==i && expiries<EXPIRIES && (pc==0 || pc==4 || pc==5) ->
       expiries++; live[me]=false; me=W+i; live[me]=true; sure[i]=false;
       if :: pc==4 -> m=0; pc=0 :: else fi }
#endif
#if KILLS > 0
  :: atomic { kills<KILLS -> kills++; live[me]=false; hand[i]=0; sure[i]=false; unlock(); break }
#endif
  od }
proctype Recovery() {                   /* the other instances: rows of an id without a lease */
  byte m=1;
end:
  do
#ifndef B_KEPT
  :: atomic { status[1]==ONE && !live[own[1]] -> status[1]=NEW; own[1]=0 }
  :: atomic { status[2]==ONE && !live[own[2]] -> status[2]=NEW; own[2]=0 }
  :: atomic { status[N]==ONE && !live[own[N]] -> status[N]=NEW; own[N]=0 }
#endif
  :: atomic { m==0 -> m=1 }
  od }
init {
  byte i;
  atomic {
    i=1;
    do :: i<=W -> live[i]=true; run Instance(i); i++ :: else -> break od;
    i=0;
    run Recovery() } }
#ifdef LIVENESS
ltl all_end { <>[] (status[1]==DONE && status[2]==DONE && status[N]==DONE) }
#endif
