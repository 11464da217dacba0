/* A table without claimed_by: one object, M1 and M2; instances that lose their leases and go on with what
 * they have in hand; people who give back what nobody seems to work on. README.md says which function is
 * which step, and lists what is checked.
 *
 * One step is one statement, or one transaction under row locks; everything else may come between.
 *   -DC_...  what is checked      -DB_...  a broken variant      other -D: bounds
 */
#ifndef EXPIRIES
#define EXPIRIES 2              /* a live process stands still beyond its lease, then goes on */
#endif
#ifndef RELEASES
#define RELEASES 0              /* release --nobody --any-age is tried */
#endif
#ifndef FAILS
#define FAILS 0                 /* a handler fails */
#endif
#ifndef MAXT
#define MAXT 9                  /* max_tries: none dies where it is not small */
#endif
#ifndef RERUNS
#define RERUNS 0                /* of a dead message */
#endif
#define N 2
#define W 2

#define NEW 0
#define PROCESSING 1
#define DONE 2
#define FAILED 3

#define IDLE 0
#define LOOKED 1
#define LANE 2                  /* flagged, its handler has not started */
#define RUN 3
#define ENDED 4                 /* its outcome is to be written */

byte st[N+1]; byte tries[N+1]; byte claim[N+1];   /* claim: which one it is, for the checks */
bool locked[N+1];
typedef Inst {
  byte pc; bool live; bool sure;                /* sure: claimed, or asked for, under this id */
  byte cand; byte seen; byte seent;
  byte flag; byte lt; byte mine; bool failed;
  bool taken; bool ghost                        /* operators released its message; its handler still runs */
}
Inst t[W+1];
byte opc; byte om; byte expiries; byte releases; byte fails; byte reruns; byte k;

#define DEAD(m) (st[m]==FAILED && tries[m]>=MAXT)
#define UNFINISHED(m) (st[m]!=DONE && !DEAD(m))
#define HEAD (UNFINISHED(1) -> 1 : (UNFINISHED(2) -> 2 : 0))
#define RUNNING (st[1]==PROCESSING || st[2]==PROCESSING)
#define AS_CLAIMED(i) (st[t[i].flag]==PROCESSING && tries[t[i].flag]==t[i].lt)
#ifdef B_FENCE                  /* an outcome asks for the status alone */
#define FENCE(i) (st[t[i].flag]==PROCESSING)
#else
#define FENCE(i) AS_CLAIMED(i)
#endif
#ifdef B_UNLOCKED               /* what is carried over is asked for without a lock */
#define FREE(m) true
#else
#define FREE(m) (!locked[m])
#endif

inline forget(i) {
  t[i].pc=IDLE; t[i].sure=false; t[i].cand=0; t[i].seen=0; t[i].seent=0; t[i].flag=0; t[i].lt=0;
  t[i].mine=0; t[i].failed=false; t[i].taken=false }
inline flagit(i, m) {
  st[m]=PROCESSING; claim[m]=(claim[m]+1)%8; t[i].flag=m; t[i].lt=tries[m]; t[i].mine=claim[m];
  assert(!(st[1]==PROCESSING && st[2]==PROCESSING)) }
inline start(i) {
  printf("I%d starts M%d\n", i, t[i].flag); t[i].pc=RUN;
#ifdef C_FLAG
  assert(!t[i].live || (st[t[i].flag]==PROCESSING && claim[t[i].flag]==t[i].mine));
#endif
#ifdef C_ALONE
  assert(t[3-i].pc!=RUN || t[3-i].taken || t[i].taken);
  assert(!t[3-i].ghost && !t[i].ghost);
#endif
  skip }
inline reborn(i) {              /* Heartbeat._go_on_with_all: a new lease; what is in hand stays */
  printf("I%d lost its lease\n", i); t[i].live=true;
#if defined(B_FORGETS)          /* as on a table with owners */
  if :: t[i].pc==RUN -> t[i].ghost=true :: else fi; forget(i)
#elif !defined(B_UNASKED) && !defined(B_ASKS_EARLY)
  t[i].sure=false
#endif
  skip }

proctype Instance(byte i) {
end:
  do
  /* ---- the claim loop ---- */
  :: d_step { t[i].pc==IDLE && !t[i].ghost && HEAD && !RUNNING && (st[HEAD]==NEW || st[HEAD]==FAILED) ->
       t[i].cand=HEAD; t[i].seen=st[HEAD]; t[i].seent=tries[HEAD]; t[i].pc=LOOKED }
  :: d_step { t[i].pc==LOOKED && !locked[t[i].cand] ->
       if
       :: !RUNNING && st[t[i].cand]==t[i].seen && tries[t[i].cand]==t[i].seent ->
          k=t[i].cand; forget(i); flagit(i, k); t[i].pc=LANE; t[i].sure=true; k=0;
          printf("I%d claims M%d\n", i, t[i].flag)
       :: else -> forget(i)
       fi }
  /* ---- handler threads ---- */
  :: d_step { t[i].pc==LANE && t[i].sure -> start(i) }
  :: d_step { t[i].pc==RUN -> t[i].pc=ENDED }
#if FAILS > 0
  :: d_step { t[i].pc==RUN && fails<FAILS -> fails++; t[i].failed=true; t[i].pc=ENDED }
#endif
  :: d_step { t[i].ghost -> t[i].ghost=false }
  /* ---- settle ---- */
  :: d_step { t[i].pc==ENDED && !locked[t[i].flag] ->
       if
       :: FENCE(i) ->
          printf("I%d settles M%d\n", i, t[i].flag);
#ifdef C_FENCE
          assert(claim[t[i].flag]==t[i].mine);
#endif
          if
          :: t[i].failed -> st[t[i].flag]=FAILED; tries[t[i].flag]++; forget(i)
          :: !t[i].failed && t[i].flag==1 && st[2]==NEW && tries[2]==0 && !locked[2] ->
             st[1]=DONE; flagit(i, 2); t[i].pc=LANE; t[i].taken=false
          :: else -> st[t[i].flag]=DONE; forget(i)
          fi
       :: else -> printf("I%d: M%d is no longer ours\n", i, t[i].flag); forget(i)
       fi }
  /* ---- the heartbeat ---- */
#ifdef B_ASKS_EARLY             /* what is carried over is asked for before the new lease */
  :: d_step { !t[i].live && t[i].pc==LANE && t[i].sure && FREE(t[i].flag) && !AS_CLAIMED(i) -> forget(i) }
  :: d_step { !t[i].live && (t[i].pc!=LANE || AS_CLAIMED(i)) -> t[i].sure=true; t[i].cand=9 }
  :: d_step { !t[i].live && t[i].cand==9 -> t[i].cand=0; reborn(i) }
#else
  :: d_step { !t[i].live -> reborn(i) }
#endif
  :: d_step { t[i].live && t[i].pc==LANE && !t[i].sure && FREE(t[i].flag) ->   /* Heartbeat._make_sure */
       if
       :: AS_CLAIMED(i) -> t[i].sure=true; printf("I%d is sure of M%d\n", i, t[i].flag)
       :: else -> printf("I%d: M%d was taken away\n", i, t[i].flag); forget(i)
       fi }
  od }

proctype Time() {
end:
  do
  :: d_step { expiries<EXPIRIES && t[1].live -> expiries++; t[1].live=false; printf("I1 stands still\n") }
  :: d_step { expiries<EXPIRIES && t[2].live -> expiries++; t[2].live=false; printf("I2 stands still\n") }
  od }

#if RELEASES > 0 || RERUNS > 0
proctype Ops() {                /* releasing.give_back_nobodys: lock, ask who lives, change, commit */
end:
  do
  :: d_step { opc==0 && releases<RELEASES && RUNNING ->
       releases++; om=(st[1]==PROCESSING -> 1 : 2); locked[om]=true; opc=1 }
#ifdef B_RELEASES_LIVING        /* nobody is asked */
  :: d_step { opc==1 -> opc=2 }
#else
  :: d_step { opc==1 -> if :: !t[1].live && !t[2].live -> opc=2 :: else -> locked[om]=false; om=0; opc=0 fi }
#endif
  :: d_step { opc==2 -> st[om]=FAILED; tries[om]++; locked[om]=false;
       printf("operators release M%d\n", om);
       if :: t[1].flag==om && t[1].mine==claim[om] -> t[1].taken=true :: else fi;
       if :: t[2].flag==om && t[2].mine==claim[om] -> t[2].taken=true :: else fi;
       om=0; opc=0 }
  :: d_step { reruns<RERUNS && DEAD(1) && !locked[1] -> reruns++; st[1]=NEW; tries[1]=0; printf("people rerun M1\n") }
  od }
#endif

init {
  atomic {
    t[1].live=true; t[2].live=true;
    run Instance(1); run Instance(2); run Time();
#if RELEASES > 0 || RERUNS > 0
    run Ops();
#endif
  } }

#ifdef LIVENESS
#define OVER(m) (st[m]==DONE || DEAD(m))
ltl all_end { []<> (OVER(1) && OVER(2)) }
#endif
