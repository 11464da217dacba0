/* Who is blamed when a process dies in a transactional batch: several objects, W instances
 * that hold any number of them at once. As quarantine.pml: a crash gives the flagged head of every object that the
 * process holds back, with a try and a crash counted; leases and statements are left out (batch.pml has them).
 * Checked: a message that has not failed MAXT-1 times on its own never dies for others.
 *
 * Objects A, B, C have NA, NB, NC messages, in order. POISON (bits) kill their process at every start; FAILS = how
 * often others may raise.
 *   (none)   the rule of batch.pml        CRASHONLY, MARK, NOBATCH  as there
 *   MULTI    lanes of one instance may join in one transaction, with their followers
 *   GROUP    the same with the heads only               SAVEPOINTS  (GROUP) what raises is rolled back alone
 *   -DC_NEVERDIES  nor one that has    -DSTARTS= -DDEATHS= -DBLAMEALL=  bounds    -DB_...  a broken variant
 */
#ifndef NA
#define NA 2
#endif
#ifndef NB
#define NB 1
#endif
#ifndef NC
#define NC 0
#endif
#define N (NA+NB+NC)
#if NC > 0
#define O 3
#define OBJ(m) ((m)<=NA -> 1 : ((m)<=NA+NB -> 2 : 3))
#else
#define O 2
#define OBJ(m) ((m)<=NA -> 1 : 2)
#endif
#ifndef W
#define W 2
#endif
#ifndef MAXT
#define MAXT 3
#endif
#ifndef POISON
#define POISON 0
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef FAILS
#define FAILS 0
#endif
#define bit(m) (1<<(m))
#define ALLBITS 255
byte tries[N+1]; byte crashes[N+1]; byte fails[N+1]; bool done[N+1];
byte own[O+1]; byte head[O+1]; byte batch[O+1]; bool solo[O+1];
byte joint[W+1];                /* objects (bits) in one transaction of the instance */
byte kills; byte failed; byte k; byte x; byte q;
#ifdef STARTS
byte starts[N+1];
#endif
#ifdef DEATHS
byte deaths;
#endif
#if N == 2
#define FIRST(P,a) (P(1,a) -> 1 : (P(2,a) -> 2 : 0))
#elif N == 3
#define FIRST(P,a) (P(1,a) -> 1 : (P(2,a) -> 2 : (P(3,a) -> 3 : 0)))
#elif N == 4
#define FIRST(P,a) (P(1,a) -> 1 : (P(2,a) -> 2 : (P(3,a) -> 3 : (P(4,a) -> 4 : 0))))
#else
#define FIRST(P,a) (P(1,a) -> 1 : (P(2,a) -> 2 : (P(3,a) -> 3 : (P(4,a) -> 4 : (P(5,a) -> 5 : 0)))))
#endif
#define IN(m,s) (((s) & bit(m)) != 0)
#define DEAD(m) (tries[m]>=MAXT)
#define ENDED(m) (done[m] || DEAD(m))
#define OPEN(m,o) (OBJ(m)==(o) && !ENDED(m))
#define NEWONE(m) (!done[m] && tries[m]==0)
#define BEHIND(m,o) (OBJ(m)==(o) && (m)>head[o] && NEWONE(m) && !IN(m,batch[o]))
#define HEAD(o) FIRST(OPEN,o)
#define IN_QUARANTINE(m) (crashes[m]>0 && tries[m]>=MAXT-1)
#if O == 3
#define HOLDS(i) (own[1]==i || own[2]==i || own[3]==i)
#define RUNS_ALONE(i) ((own[1]==i && IN_QUARANTINE(head[1])) || (own[2]==i && IN_QUARANTINE(head[2])) || \
  (own[3]==i && IN_QUARANTINE(head[3])))
#else
#define HOLDS(i) (own[1]==i || own[2]==i)
#define RUNS_ALONE(i) ((own[1]==i && IN_QUARANTINE(head[1])) || (own[2]==i && IN_QUARANTINE(head[2])))
#endif
#ifdef B_NOQUARANTINE
#define MAY(i,m) true
#elif defined(B_BESIDE)
#define MAY(i,m) (!IN_QUARANTINE(m) || !HOLDS(i))
#else
#define MAY(i,m) (!RUNS_ALONE(i) && (!IN_QUARANTINE(m) || !HOLDS(i)))
#endif
#ifdef B_LASTTRY                /* with max_tries = 1, too */
#define NOTLAST(m) true
#else
#define NOTLAST(m) (MAXT>1)
#endif
#ifdef B_CRASHSHARE
#define CLEAN(m) true
#elif defined(CRASHONLY)
#define CLEAN(m) (crashes[m]==0 && NOTLAST(m))
#else
#define CLEAN(m) (crashes[m]==0 && tries[m]==0 && NOTLAST(m))
#endif
#if defined(NOBATCH) || defined(GROUP)
#define MAYLEAD(o) false
#else
#define MAYLEAD(o) (CLEAN(head[o]) && !solo[o])
#endif
#define MAYJOIN(o) (CLEAN(head[o]) && !solo[o])
#ifdef B_RUNQUARANTINE          /* a run is read behind a message in quarantine, too */
#define NORUN(o) false
#else
#define NORUN(o) IN_QUARANTINE(head[o])
#endif
#define SINGLE(o) (batch[o]==bit(head[o]))
#define ILL(o) ((batch[o] & (POISON)) != 0)

inline choose(o) {
  batch[o]=bit(head[o]);
  do
  :: MAYLEAD(o) && FIRST(BEHIND,o) && crashes[FIRST(BEHIND,o)]==0 -> batch[o]=batch[o]|bit(FIRST(BEHIND,o))
  :: break
  od }
inline begin(o) {
  k=1;
  do :: k<=N -> if :: IN(k,batch[o]) -> printf("I%d starts M%d\n", own[o], k);
#ifdef STARTS
                  starts[k]++; assert(starts[k]<=STARTS);
#endif
                  skip
                   :: else fi; k++
     :: else -> break od;
  k=0 }
inline release(o) { own[o]=0; head[o]=0; batch[o]=0; solo[o]=false }
inline commit(o) {              /* head and followers are done; the flag moves on, or the lane ends */
  q=NORUN(o); k=1;
  do :: k<=N -> if :: IN(k,batch[o]) -> done[k]=true; printf("M%d is done\n", k) :: else fi; k++ :: else -> break od;
  k=0; batch[o]=0; x=HEAD(o);
  if :: x && !q && NEWONE(x) -> head[o]=x :: else -> release(o) fi;
  x=0; q=0 }
inline charged(o) {             /* recovery */
  x=head[o]; tries[x]++; crashes[x]++; printf("M%d: %d tries\n", x, tries[x]);
#ifdef BLAMEALL                 /* tries of an innocent that it did not fail itself, and never the last one */
  assert(IN(x,POISON) || tries[x]-fails[x]<=BLAMEALL);
#endif
  assert(IN(x,POISON) || !DEAD(x) || fails[x]>=MAXT-1);
#ifdef C_NEVERDIES                /* ... nor one that has failed as often as it may */
  assert(IN(x,POISON) || !DEAD(x));
#endif
#ifdef MARK
  k=x+1; do :: k<=N -> if :: OBJ(k)==o && NEWONE(k) && !crashes[k] -> crashes[k]=1 :: else fi; k++
           :: else -> break od; k=0;
#endif
  release(o); x=0 }
inline dies(i) {
  if :: own[1]==i -> charged(1) :: else fi;
  if :: own[2]==i -> charged(2) :: else fi;
#if O == 3
  if :: own[3]==i -> charged(3) :: else fi;
#endif
  joint[i]=0 }
inline undone(o) { batch[o]=0; solo[o]=true }

proctype Lane(byte i; byte o) {
end:
  do
  :: d_step { !own[o] && HEAD(o) && MAY(i,HEAD(o)) -> own[o]=i; head[o]=HEAD(o); printf("I%d claims M%d\n", i, head[o]);
#if !defined(CRASHONLY) && !defined(MARK) && !defined(B_CRASHSHARE)
       solo[o]=!CLEAN(head[o])
#endif
     }
  :: atomic { own[o]==i && !batch[o] -> choose(o); d_step { begin(o) } }
  :: d_step { own[o]==i && batch[o] && !IN(o,joint[i]) && ILL(o) ->
       printf("I%d dies\n", i);
#ifdef DEATHS
       deaths++; assert(deaths<=DEATHS);
#endif
       dies(i) }
  :: d_step { own[o]==i && batch[o] && !IN(o,joint[i]) && !ILL(o) -> commit(o) }
  :: d_step { own[o]==i && batch[o] && !IN(o,joint[i]) && !ILL(o) && failed<FAILS ->
       failed++;
       if
       :: SINGLE(o) -> x=head[o]; tries[x]++; fails[x]++; printf("M%d fails\n", x); release(o); x=0
       :: else ->
#ifdef B_BLAMEHEAD
          x=head[o]; tries[x]++; printf("a mate of M%d fails\n", x); release(o);
          assert(IN(x,POISON) || !DEAD(x) || fails[x]>=MAXT-1); x=0
#else
          printf("the batch of M%d fails\n", head[o]); undone(o)
#endif
       fi }
#if KILLS > 0
  :: d_step { own[o]==i && kills<KILLS -> kills++; printf("I%d is killed\n", i); dies(i) }
#endif
  od }

#if defined(MULTI) || defined(GROUP)
#define JOINS(i,o) (own[o]==i && !batch[o] && MAYJOIN(o))
proctype Joint(byte i) {        /* the lanes of A and B in one transaction */
end:
  do
  :: atomic { JOINS(i,1) && JOINS(i,2) ->
       joint[i]=bit(1)|bit(2); choose(1); choose(2); d_step { printf("joint: "); begin(1); begin(2) } }
  :: d_step { joint[i] && (ILL(1) || ILL(2)) -> printf("I%d dies\n", i);
#ifdef DEATHS
       deaths++; assert(deaths<=DEATHS);
#endif
       dies(i) }
  :: d_step { joint[i] && !ILL(1) && !ILL(2) -> joint[i]=0; commit(1); commit(2) }
#ifdef SAVEPOINTS
  :: d_step { joint[i] && !ILL(1) && !ILL(2) && failed<FAILS -> failed++; joint[i]=0;
       x=head[1]; tries[x]++; fails[x]++; printf("M%d fails\n", x); release(1); x=0; commit(2) }
  :: d_step { joint[i] && !ILL(1) && !ILL(2) && failed<FAILS -> failed++; joint[i]=0;
       x=head[2]; tries[x]++; fails[x]++; printf("M%d fails\n", x); release(2); x=0; commit(1) }
#else
  :: d_step { joint[i] && !ILL(1) && !ILL(2) && failed<FAILS -> failed++; joint[i]=0;
       printf("the joint batch fails\n"); undone(1); undone(2) }
#endif
  od }
#endif

init {
  byte i, m;
  atomic {
    i=1;
    do :: i<=W -> m=1; do :: m<=O -> run Lane(i,m); m++ :: else -> break od;
#if defined(MULTI) || defined(GROUP)
       run Joint(i);
#endif
       i++
       :: else -> break od;
    i=0; m=0 } }
#ifdef LIVENESS
#if N == 3
ltl all_end { []<> (ENDED(1) && ENDED(2) && ENDED(3)) }
#elif N == 4
ltl all_end { []<> (ENDED(1) && ENDED(2) && ENDED(3) && ENDED(4)) }
#else
ltl all_end { []<> (ENDED(1) && ENDED(2) && ENDED(3) && ENDED(4) && ENDED(5)) }
#endif
#endif
