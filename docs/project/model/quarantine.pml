/* Who is blamed when a process dies: N objects with one message each, the last POISONS of them kill
 * their process when started; W instances, each claims any number of free objects. A crash gives
 * every row of the instance back with a try and a crash counted (store/recover.recover).
 *
 * The rule (in_quarantine; Claimer.claim_alone, Fetcher): a message on its last try that was
 * in a crash before is claimed only by an instance that holds nothing, and nothing beside it.
 * Checked: a message that has not failed MAXT-1 times on its own never dies for others.
 *   B_NOQUARANTINE  no such rule        B_BESIDE  others may be claimed beside it
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
byte own[N+1]; byte tries[N+1]; byte crashes[N+1]; byte fails[N+1]; bool done[N+1];
byte k; byte kills; byte failed;
#define POISON(m) (m > N-POISONS)
#define DEAD(m) (tries[m]>=MAXT)
#define HOLDS(i) (own[1]==i || own[2]==i || own[3]==i || own[N]==i)
#define IN_QUARANTINE(m) (crashes[m]>0 && tries[m]>=MAXT-1)
#define ALONE1(i,m) (own[m]==i && IN_QUARANTINE(m))
#define RUNS_ALONE(i) (ALONE1(i,1) || ALONE1(i,2) || ALONE1(i,3) || ALONE1(i,N))
#ifdef B_NOQUARANTINE
#define MAY(i,m) true
#elif defined(B_BESIDE)
#define MAY(i,m) (!IN_QUARANTINE(m) || !HOLDS(i))
#else
#define MAY(i,m) (!RUNS_ALONE(i) && (!IN_QUARANTINE(m) || !HOLDS(i)))
#endif
inline dies(i) {
  k=1;
  do
  :: k<=N ->
     if
     :: own[k]==i -> own[k]=0; tries[k]++; crashes[k]++; printf("M%d tries %d\n", k, tries[k]);
        assert(POISON(k) || !DEAD(k) || fails[k]>=MAXT-1)
     :: else
     fi;
     k++
  :: else -> break
  od;
  k=0 }
proctype Instance(byte i; byte m) {     /* the dealings of instance i with message m */
end:
  do
  :: d_step { !own[m] && !done[m] && !DEAD(m) && MAY(i,m) -> own[m]=i; printf("I%d claims M%d\n", i, m) }
  :: d_step { own[m]==i && !POISON(m) -> own[m]=0; done[m]=true; printf("I%d M%d is done\n", i, m) }
  :: d_step { own[m]==i && !POISON(m) && failed<FAILS ->
       failed++; own[m]=0; tries[m]++; fails[m]++; printf("I%d M%d fails\n", i, m) }
  :: d_step { own[m]==i && POISON(m) -> printf("M%d kills I%d\n", m, i); dies(i) }
#if KILLS > 0
  :: d_step { own[m]==i && kills<KILLS -> kills++; printf("I%d is killed\n", i); dies(i) }
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
