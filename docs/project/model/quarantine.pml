/* Who is blamed when a process dies: N objects with one message each, the last POISONS of them kill
 * their process when started; W instances, each claims any number of free objects. A crash gives
 * every row of the instance back with a crash counted, whether its handler had begun or not: the
 * database does not know it (store/recover.recover).
 *
 * The rule (in_quarantine; Claimer.claim_alone, Emptying): a message that was in two crashes, or in
 * one and is on its last try, is claimed only by an instance that holds nothing, and nothing beside
 * it. Only a crash of such a one counts a try. STALE: what a look has read of M1 may be old at its
 * claim, which asks for the tries and crashes as they were read.
 * Checked: the tries of an innocent are its own failures and KILLS from outside while it was alone,
 * so no crash ends it before MAXT of these; a message is in a crash at most BESIDE + MAXT times.
 *   B_COUNTS        each crash counts a try     B_CRASHFREE     none does
 *   B_NOQUARANTINE  no such rule for claims     B_BESIDE        others may be claimed beside it
 *   B_UNSEEN        the claim asks for the tries alone
 */
#ifndef N
#define N 3
#endif
#ifndef POISONS
#define POISONS 1
#endif
#ifndef W
#define W 2
#endif
#ifndef MAXT
#define MAXT 3
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef FAILS
#define FAILS 0
#endif
#ifndef DEATHS                  /* of processes, by one poison message */
#define DEATHS (MAXT+2)
#endif
byte own[N+1]; byte tries[N+1]; byte crashes[N+1]; byte fails[N+1]; bool done[N+1];
byte hits[N+1];                 /* kills from outside while it was alone */
byte deaths[N+1];
byte k; byte kills; byte failed;
#define POISON(m) (m > N-POISONS)
#define DEAD(m) (tries[m]>=MAXT)
#define HOLDS(i) (own[1]==i || own[2]==i || own[3]==i || own[N]==i)
#define SUSPECT(c,t) ((c)>=2 || ((c)>0 && (t)>=MAXT-1))
#define IN_QUARANTINE(m) SUSPECT(crashes[m],tries[m])
#define ALONE1(i,m) (own[m]==i && IN_QUARANTINE(m))
#define RUNS_ALONE(i) (ALONE1(i,1) || ALONE1(i,2) || ALONE1(i,3) || ALONE1(i,N))
#ifdef B_NOQUARANTINE
#define MAY(i,c,t) true
#elif defined(B_BESIDE)
#define MAY(i,c,t) (!SUSPECT(c,t) || !HOLDS(i))
#else
#define MAY(i,c,t) (!RUNS_ALONE(i) && (!SUSPECT(c,t) || !HOLDS(i)))
#endif
#ifdef B_UNSEEN
#define SAME(m) (tries[m]==stt)
#else
#define SAME(m) (tries[m]==stt && crashes[m]==sc)
#endif
#ifdef B_COUNTS
#define CHARGED(m) true
#elif defined(B_CRASHFREE)
#define CHARGED(m) false
#else
#define CHARGED(m) IN_QUARANTINE(m)
#endif
#define FREE(m) (!own[m] && !done[m] && !DEAD(m))
inline dies(i, hit) {
  k=1;
  do
  :: k<=N ->
     if
     :: own[k]==i ->
        own[k]=0;
        if :: hit && IN_QUARANTINE(k) -> hits[k]++ :: else fi;
        if :: CHARGED(k) -> tries[k]++ :: else fi;
        if :: crashes[k]<MAXT -> crashes[k]++ :: else fi;
        printf("M%d tries %d crashes %d\n", k, tries[k], crashes[k]);
        assert(POISON(k) || tries[k]==fails[k]+hits[k])
     :: else
     fi;
     k++
  :: else -> break
  od;
  k=0 }
proctype Instance(byte i; byte m) {     /* the dealings of instance i with message m */
#ifdef STALE
  byte stt; byte sc; bool looked;
#endif
end:
  do
#ifdef STALE
  :: d_step { i==W && m==1 && FREE(m) && !looked -> stt=tries[m]; sc=crashes[m]; looked=true }
  :: d_step { looked -> looked=false;
       if
       :: FREE(m) && SAME(m) && MAY(i,sc,stt) -> own[m]=i; printf("I%d claims M%d late\n", i, m)
       :: else
       fi;
       stt=0; sc=0 }
#endif
  :: d_step { FREE(m) && MAY(i,crashes[m],tries[m]) -> own[m]=i; printf("I%d claims M%d\n", i, m) }
  :: d_step { own[m]==i && !POISON(m) -> own[m]=0; done[m]=true; printf("I%d M%d is done\n", i, m) }
  :: d_step { own[m]==i && !POISON(m) && failed<FAILS ->
       failed++; own[m]=0; tries[m]++; fails[m]++; printf("I%d M%d fails\n", i, m) }
  :: d_step { own[m]==i && POISON(m) -> printf("M%d kills I%d\n", m, i);
       deaths[m]++; assert(deaths[m]<=DEATHS); dies(i, false) }
#if KILLS > 0
  :: d_step { own[m]==i && kills<KILLS -> kills++; printf("I%d is killed\n", i); dies(i, true) }
#endif
  od }
init {
  byte i, m;
  atomic {
    i=1;
    do :: i<=W -> m=1; do :: m<=N -> run Instance(i,m); m++ :: else -> break od; i++
       :: else -> break od;
    i=0; m=0 } }
#define ENDED(m) (done[m] || DEAD(m))
#ifdef LIVENESS
ltl all_end { []<> (ENDED(1) && ENDED(2) && ENDED(3) && ENDED(N)) }
#endif
