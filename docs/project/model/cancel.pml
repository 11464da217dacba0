/* Cancel: one message, W instances that claim, run and settle it, an operator who cancels and reruns it, and kills.
 * A request is made, acted on and deleted under the lock of the row (d_step: row and request together). The look of a
 * heartbeat has three steps, between which anything may happen: the lanes, the requests with their messages, the acts.
 *
 *   C_HIT    a request never hits a run that a rerun has begun after it
 *   C_START  a cancelled message does not start before a rerun    C_DONE  what is done is not cancelled
 *   B_KEEPS  a rerun keeps the request        B_UNASKED   what waits is ended as it was read
 *   B_LATE   the lanes are read last          B_ANYCLAIM  a request is noted for the message, not for its claim
 * LIVENESS: no request stays for ever.
 */
#ifndef W
#define W 2
#endif
#ifndef RERUNS
#define RERUNS 2
#endif
#ifndef CANCELS
#define CANCELS 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef FAILS
#define FAILS 1
#endif
#define NEW 0
#define RUNS 1
#define DONE 2
#define DEAD 3
byte st; byte own; byte claim;               /* the row; a number for each claim */
byte no; byte ended;                         /* ghosts: reruns so far; the run that was cancelled, +1 */
bool req; byte reqno;                        /* the request; the run for which it was made (ghost) */
byte noted[W+1]; byte notedno[W+1];          /* the claim of which an instance has noted a request, its run (ghost) */
byte reruns; byte cancels; byte kills; byte fails;
#define OURS(i) (st==RUNS && own==i)
#ifdef B_ANYCLAIM
#define NOTED(i) (noted[i])
#else
#define NOTED(i) (noted[i]==claim)
#endif
inline hits(r) {
#ifdef C_HIT
  assert(r==no);
#endif
#ifdef C_DONE
  assert(st!=DONE);
#endif
  st=DEAD; own=0; ended=no+1 }
proctype Instance(byte i) {
  byte held; byte seen; byte seenno; byte at;
end:
  do
  :: d_step { st==NEW -> st=RUNS; own=i; claim++; printf("I%d claims\n", i);
#ifdef C_START
       assert(ended!=no+1)
#endif
     }
  :: d_step { OURS(i) && !NOTED(i) -> st=DONE; own=0; printf("I%d done\n", i) }
  :: d_step { OURS(i) && !NOTED(i) && fails<FAILS -> fails++; st=NEW; own=0; printf("I%d fails, or releases it\n", i) }
  :: d_step { OURS(i) && NOTED(i) -> hits(notedno[i]); printf("I%d ends it, cancelled\n", i) }
  :: d_step { at==0 && req && !(OURS(i) && NOTED(i)) -> at=1; held=(OURS(i) -> claim : 0); printf("I%d looks: lanes\n", i) }
  :: d_step { at==1 -> at=0; seen=0;
       if
       :: req && !(st==RUNS && own!=i) -> at=2; seen=st; seenno=reqno; printf("I%d looks: a request\n", i)
       :: else
       fi }
#ifdef B_LATE
  :: d_step { at==2 && seen==RUNS -> at=0; held=(OURS(i) -> claim : 0);
#else
  :: d_step { at==2 && seen==RUNS -> at=0;
#endif
       if
       :: held -> noted[i]=held; notedno[i]=seenno; printf("I%d notes it\n", i)
       :: else
       fi }
#ifdef B_UNASKED
  :: d_step { at==2 && seen==NEW -> at=0;
       if
       :: st==NEW -> hits(seenno); req=false; printf("I%d ends what waits\n", i)
       :: else
       fi }
#else
  :: d_step { at==2 && seen==NEW -> at=0;
       if
       :: st==NEW && req -> hits(reqno); req=false; printf("I%d ends what waits\n", i)
       :: else
       fi }
#endif
  :: d_step { at==2 && seen>=DONE -> at=0;
       if
       :: st==seen -> req=false; printf("I%d drops the request\n", i)
       :: else
       fi }
  od }
proctype Killer() {
end:
  do
  :: d_step { kills<KILLS && st==RUNS -> kills++; noted[own]=0;
       if
       :: req -> hits(reqno); req=false; printf("F a dead one is recovered, cancelled\n")
       :: else -> st=NEW; own=0; printf("F a dead one is recovered\n")
       fi }
  od }
proctype Ops() {
end:
  do
  :: d_step { cancels<CANCELS && st==NEW -> cancels++; st=DEAD; ended=no+1; req=false; printf("ops cancel what waits\n") }
  :: d_step { cancels<CANCELS && st==RUNS -> cancels++; req=true; reqno=no; printf("ops request a cancel\n") }
  :: d_step { reruns<RERUNS && st>=DONE -> reruns++; no++; st=NEW; printf("ops rerun\n");
#ifndef B_KEEPS
       req=false
#endif
     }
  od }
init { atomic { byte k; for (k : 1 .. W) { run Instance(k) }; run Ops(); run Killer() } }
#ifdef LIVENESS
ltl over { []<> (!req) }
#endif
