/* The protocol of one object: M1..Mn in one table, instances with leases, the guard, head, run,
 * moving flag, recovery. README.md says which function is which step, and lists what is checked.
 *
 * One step is one statement, or one transaction under row locks; everything else may come between.
 *   -DC_...  what is checked      -DB_...  a broken variant      other -D: bounds and faults
 */
#ifndef N
#define N 3                     /* messages */
#endif
#ifndef W
#define W 2                     /* instances */
#endif
#ifndef MAXT
#define MAXT 2                  /* max_tries */
#endif
#ifndef R
#define R 1                     /* who recovers */
#endif
/* How often each may happen */
#ifndef KILLS
#define KILLS 0                 /* a process dies */
#endif
#ifndef EXPIRIES
#define EXPIRIES 0              /* a live process stands still beyond its lease, then goes on */
#endif
#ifndef STOPS
#define STOPS 0                 /* orderly stops */
#endif
#ifndef UNKNOWN
#define UNKNOWN 0               /* a COMMIT arrives, its answer is lost */
#endif
#ifndef DELAYED
#define DELAYED 0               /* a settle given up as lost is executed later */
#endif
#ifndef PENDING
#define PENDING 0               /* a COMMIT is under way, its answer lost: holds its locks; then done, or rolled back */
#endif
#ifndef RKILLS
#define RKILLS 0                /* who recovers dies in the middle */
#endif
#ifndef LATERS
#define LATERS 0                /* a handler asks for RetryLater */
#endif
#ifndef RERUNS
#define RERUNS 1                /* with RERUN or FORCED */
#endif
/* LATE: M1 is committed late · RERUN: ops rerun a dead message · FORCED: also a done one · DISCARD
 * FOREIGN: the plain consumer on the same table · BACKOFF: failed messages wait · BLOCK: on_dead
 * EDIT: ops edit a message that waits or is dead, once
 * TX: transactional handlers, which start again when nothing of them was committed
 * POISON=m: Mm kills its process at every start · NOFAIL: handlers do not fail */

#define NEW 0
#define PROCESSING 1
#define DONE 2
#define FAILED 3

#define NONE 0                  /* states of a lease */
#define LIVE 1
#define EXPIRED 2
#define TAKEN 3

#define IDLE 0                  /* where the claim loop, or the lane, of an instance is */
#define LOOKED 1
#define FLAGGED 2
#define LANE 3
#define DRAIN 4

#define R_NONE 0                /* Result of a handler */
#define R_DONE 1
#define R_FAILED 2
#define R_DEAD 3
#define R_LATER 4
#define R_RELEASED 5

#define IDS 7
#define bit(m) (1<<(m))

/* the table */
byte st[N+1]; byte tries[N+1]; byte laters[N+1]; byte by[N+1]; bool vis[N+1]; bool due[N+1];
byte lease[IDS+1];
/* the processes */
typedef Inst {
  byte pc; byte id;
  byte cand; byte seen; byte seent;             /* the candidate, its status and tries as seen */
  byte flag; byte behind;                          /* Lane.row, and the rows behind it (bits) */
  byte lt; byte lat;                            /* Row.tries, Row.later_times of the flagged one */
  byte cur; byte res; bool unknown; bool stop;
  byte ghost;                                   /* a handler of a lost id still runs */
  byte doubt;                                   /* messages (bits) that a settle of ours is under way of */
  byte epoch
#ifdef EDIT
  ; byte held                                   /* messages (bits) that it has read as they were edited */
#endif
}
Inst t[W+1];
byte fpc; byte fcand; byte fcur;                /* the foreign consumer */
byte rx[R+1]; byte rrow[R+1]; byte rpc[R+1];    /* who recovers: the dead id, the row, the place */
byte flym; byte flyres; byte flynext; byte flyid; byte flyt; byte flyl;   /* a delayed settle */
byte kills; byte expiries; byte stops; byte unknowns; byte rkills; byte laters_used; byte reruns;
byte flown; bool discarded;
byte pend; byte pendres; byte pendnext; byte pendid; byte pendings;       /* a COMMIT under way */
#ifdef C_TRIES
byte starts[N+1];
#endif
#ifdef C_FENCE
byte epoch[N+1];
#endif
#ifdef C_ONCE
byte effects[N+1];
#endif
#ifdef EDIT
byte edited; byte gone;                         /* messages (bits): edited; discarded, not rerun since */
#define READS(i,m) t[i].held=((edited & bit(m)) -> (t[i].held|bit(m)) : (t[i].held & (255-bit(m))))
#ifdef B_EDITS_GONE             /* what was discarded is edited, and rerun, whatever of its object runs */
#define MAYEDIT(m) true
#else
#define MAYEDIT(m) (!(gone & bit(m)) || !RUNNING)
#endif
#define MAYRERUN(m) (!(edited & bit(m)) || MAYEDIT(m))
#else
#define READS(i,m) skip
#define MAYRERUN(m) true
#endif
byte k; byte nx; byte x; bool stopread;

#define DEAD(i) (st[i]==FAILED && tries[i]>=MAXT)
#define ENDED(i) (vis[i] && (st[i]==DONE || DEAD(i)))
#ifdef BLOCK
#define UNFINISHED(i) (vis[i] && st[i]!=DONE && !(st[i]==FAILED && tries[i]>MAXT))
#else
#define UNFINISHED(i) (vis[i] && st[i]!=DONE && !DEAD(i))
#endif
#define CLAIMABLE(i) (st[i]==NEW || (st[i]==FAILED && tries[i]<MAXT))
#define READY(i) (vis[i] && due[i] && CLAIMABLE(i))
#define RUNS(i) (vis[i] && st[i]==PROCESSING)
#define OWNED(i,who) (st[i]==PROCESSING && by[i]==who)
#if N == 3
#define RUNNING (RUNS(1) || RUNS(2) || RUNS(3))
#define HOWMANY (RUNS(1) + RUNS(2) + RUNS(3))
#define RUNROW (RUNS(1) -> 1 : (RUNS(2) -> 2 : (RUNS(3) -> 3 : 0)))
#define MINE(who) (OWNED(1,who) -> 1 : (OWNED(2,who) -> 2 : (OWNED(3,who) -> 3 : 0)))
#define LOWEST(s) (((s)&2) -> 1 : (((s)&4) -> 2 : (((s)&8) -> 3 : 0)))
#define HEAD (UNFINISHED(1) -> 1 : (UNFINISHED(2) -> 2 : (UNFINISHED(3) -> 3 : 0)))
#define NAMED(l) (by[1]==l || by[2]==l || by[3]==l)
#else
#define RUNNING (RUNS(1) || RUNS(2))
#define HOWMANY (RUNS(1) + RUNS(2))
#define RUNROW (RUNS(1) -> 1 : (RUNS(2) -> 2 : 0))
#define MINE(who) (OWNED(1,who) -> 1 : (OWNED(2,who) -> 2 : 0))
#define LOWEST(s) (((s)&2) -> 1 : (((s)&4) -> 2 : 0))
#define HEAD (UNFINISHED(1) -> 1 : (UNFINISHED(2) -> 2 : 0))
#define NAMED(l) (by[1]==l || by[2]==l)
#endif
#if W == 3
#define INUSE(l) (t[1].id==l || t[2].id==l || t[3].id==l)
#else
#define INUSE(l) (t[1].id==l || t[2].id==l)
#endif
#if R == 2
#define SOUGHT(l) (rx[1]==l || rx[2]==l)
#else
#define SOUGHT(l) (rx[1]==l)
#endif
#define ENTITLED(j) (lease[t[j].id]==LIVE)
#define LOCKED(m) (pend && ((m)==pend || (m)==pendnext))  /* and whoever flags waits for the guard's entry */

/* ---- the conditions of the statements, and what is left of them in the broken variants ---- */
#ifdef B_GUARD                  /* there is no unique index */
#define G_GUARD true
#else
#define G_GUARD (!RUNNING)
#endif
#ifdef B_SAMEID                 /* the id stays, whatever of it may still be under way */
#define IN_DOUBT(i,m) false
#else
#define IN_DOUBT(i,m) (t[i].doubt & bit(m))
#endif
#ifdef B_SEEN                   /* the flagging looks at the guard alone, not at status and tries */
#define G_SEEN(i) true
#else
#define G_SEEN(i) (st[t[i].cand]==t[i].seen && tries[t[i].cand]==t[i].seent)
#endif
#ifdef B_RUNNING                /* "no earlier one is RUNNING", as in the plain protocol */
#define OFFERED(m) (READY(m) && !RUNNING)
#else
#define OFFERED(m) (m==HEAD && READY(m) && !RUNNING)
#endif
#ifdef B_FENCE                  /* outcomes are written whoever has the row */
#define FENCE(i) (st[t[i].flag]==PROCESSING || st[t[i].flag]==FAILED || st[t[i].flag]==NEW)
#else
#define FENCE(i) (OWNED(t[i].flag, t[i].id) && \
  (t[i].res==R_DONE || (tries[t[i].flag]==t[i].lt && laters[t[i].flag]==t[i].lat)))
#endif
#ifdef B_KEEPS                  /* claimed_by stays when a row leaves PROCESSING */
#define CLEAR(m) skip
#else
#define CLEAR(m) by[m] = 0
#endif
#ifdef BACKOFF
#define LATERON(m) due[m] = false
#else
#define LATERON(m) skip
#endif
#ifdef B_RECOVERS_ANY           /* recovery names the row, not who had it */
#define DEADS(r) (rrow[r] && st[rrow[r]]==PROCESSING && by[rrow[r]])
#else
#define DEADS(r) (rrow[r] && OWNED(rrow[r], rx[r]))
#endif
#ifdef B_CRASHFREE              /* a crash counts no try */
#define CRASHTRY 0
#else
#define CRASHTRY 1
#endif

#ifdef B_GHOST                  /* the new id claims what an old handler still works on */
#define NO_GHOST(i) true
#else
#define NO_GHOST(i) (!t[i].ghost)
#endif
#ifdef B_LEAVES                 /* the lease is dropped without looking */
#define HOLDS_NOTHING(i) true
#else
#define HOLDS_NOTHING(i) (!MINE(t[i].id))
#endif
#ifdef B_NOTAKEOVER             /* the rows are given back, the lease stays as it is */
#define DROPS(l) (lease[l]==TAKEN || lease[l]==EXPIRED)
#else
#define DROPS(l) (lease[l]==TAKEN)
#endif
#ifdef B_LOOKPLAIN              /* the look does not lock: it sees the state before a commit that is under way */
#define MAYLOOK true
#else
#define MAYLOOK (!pend)
#endif
#ifdef B_ANYCLAIM               /* an outcome does not ask for the claim that it belongs to */
#define SAME_CLAIM true
#else
#define SAME_CLAIM (flyres==R_DONE || (tries[flym]==flyt && laters[flym]==flyl))
#endif

inline forget(i) {
  t[i].cand=0; t[i].seen=0; t[i].seent=0; t[i].behind=0; t[i].flag=0; t[i].res=0; t[i].unknown=0;
  t[i].lt=0; t[i].lat=0; t[i].epoch=0;
#ifdef EDIT
  t[i].held=0;
#endif
  skip }
inline reborn(i) {              /* a new id: here the lowest that nothing remembers */
  forget(i); t[i].pc=IDLE; t[i].stop=0; t[i].cur=0; t[i].id=0; t[i].doubt=0; x=1;
  do :: x<=IDS && (lease[x]!=NONE || NAMED(x) || INUSE(x) || SOUGHT(x) || flyid==x || pendid==x) -> x++
     :: else -> break od;
  assert(x<=IDS); t[i].id=x; lease[x]=LIVE; x=0 }
inline killed(i) { printf("I%d dies (handler of M%d)\n", i, t[i].cur); t[i].ghost=0; reborn(i) }
inline flagit(m, i) {
  st[m]=PROCESSING; by[m]=t[i].id; due[m]=true; t[i].flag=m; t[i].lt=tries[m];
  t[i].lat=laters[m];
#ifdef C_FENCE
  epoch[m]=(epoch[m]+1)%8; t[i].epoch=epoch[m];
#endif
  assert(HOWMANY<=1) }
inline give_back(m) {           /* back_to */
  st[m]=(tries[m] -> FAILED : NEW); due[m]=true; CLEAR(m) }
inline lane_ends(i) {
  t[i].pc=(t[i].cur -> DRAIN : IDLE); forget(i) }
inline read_run(i) {            /* read_runs: new and due ones, up to the first that is not */
  t[i].behind=0; k=1; stopread=false;
  do
  :: k<=N ->
     if
     :: UNFINISHED(k) && k<t[i].cand ->
#ifdef B_RUNEARLY
        skip
#else
        stopread=true           /* a lower one has appeared */
#endif
     :: UNFINISHED(k) && k>t[i].cand && !stopread ->
        if
        :: st[k]==NEW && due[k] -> t[i].behind=t[i].behind|bit(k); READS(i,k)
#ifdef B_SKIPS                  /* the run passes over a message that waits */
        :: else -> skip
#else
        :: else -> stopread=true
#endif
        fi
     :: else
     fi;
     k++
  :: else -> break
  od;
  k=0; stopread=false }
inline start(i, m) {            /* what must be true whenever a handler starts */
  printf("I%d starts M%d\n", i, m); t[i].cur=m;
#ifdef C_ALONE
  k=1;
  do :: k<=W -> assert(k==i || !ENTITLED(i) || !ENTITLED(k) || !t[k].cur); k++
     :: else -> break od;
  assert(!ENTITLED(i) || !fcur);
  assert(!t[i].ghost);
#endif
#ifdef C_ORDER
  k=1; do :: k<m -> assert(!ENTITLED(i) || !UNFINISHED(k)); k++ :: else -> break od;
#endif
#ifdef C_FLAG
  assert(!ENTITLED(i) || OWNED(m, t[i].id));
#endif
#ifdef C_TRIES
  starts[m]++; assert(starts[m]<=MAXT);
#endif
#ifdef EDIT                     /* as it was edited */
  assert(!ENTITLED(i) || ((t[i].held & bit(m))==(edited & bit(m))));
#endif
  k=0 }
inline written(m, how) {        /* done_values, _outcome_values */
#ifdef C_ONCE
  if :: how==R_DONE -> effects[m]++; assert(effects[m]<=1) :: else fi;
#endif
  if
  :: how==R_DONE -> st[m]=DONE; CLEAR(m)
  :: how==R_FAILED -> st[m]=FAILED; tries[m]++; CLEAR(m); if :: tries[m]<MAXT -> LATERON(m) :: else fi
  :: how==R_DEAD -> st[m]=FAILED; tries[m]=MAXT; CLEAR(m)
  :: how==R_LATER -> give_back(m); laters[m]++; LATERON(m)
  :: how==R_RELEASED -> give_back(m)
  fi }
inline settle(i) {              /* one transaction: the outcome, then the flag of the next; nx = it */
#ifdef C_FENCE
  assert(t[i].epoch==epoch[t[i].flag]);
#endif
  printf("I%d settles M%d (%d)\n", i, t[i].flag, t[i].res);
  written(t[i].flag, t[i].res);
  nx=0;
  if :: t[i].res==R_DONE && !t[i].stop -> nx=LOWEST(t[i].behind) :: else fi;
  if :: nx && !(st[nx]==NEW && due[nx] && G_GUARD) -> nx=0 :: else fi;
  if :: nx -> x=t[i].flag; flagit(nx, i); t[i].flag=x; x=0 :: else fi }
inline went_on(i) {             /* the answer: Settled.ADVANCED or ENDED, nx */
  if
  :: nx -> printf("I%d flag moves to M%d\n", i, nx); t[i].flag=nx; t[i].behind=t[i].behind & (255-bit(nx));
     t[i].res=R_NONE; t[i].unknown=0; t[i].lt=tries[nx]; t[i].lat=laters[nx];
#ifdef C_FENCE
     t[i].epoch=epoch[nx];
#endif
     skip
  :: else -> lane_ends(i)
  fi; nx=0 }

proctype Instance(byte i) {
end:
  do
  /* ---- the claim loop: Search.look and the snapshot of claim.flag, then what claim.flag writes ---- */
  :: d_step { t[i].pc==IDLE && !t[i].stop && !t[i].cur && (OFFERED(1) || OFFERED(2) || OFFERED(N)) && NO_GHOST(i) ->
       k=1; do :: k<=N && !OFFERED(k) -> k++ :: else -> break od;
       if
       :: IN_DOUBT(i,k) ->      /* Heartbeat._renamed: with empty hands, an orderly new id */
          if
          :: HOLDS_NOTHING(i) && lease[t[i].id]==LIVE ->
             lease[t[i].id]=NONE; printf("I%d takes a new id\n", i); reborn(i)
          :: else
          fi;
          k=0
       :: else ->
          t[i].cand=k; t[i].seen=st[k]; t[i].seent=tries[k]; t[i].pc=LOOKED; k=0;
#ifdef B_RUNEARLY               /* the run is read with the candidates */
          read_run(i)
#endif
       fi
     }
  :: atomic { t[i].pc==LOOKED && !pend ->
       if
       :: G_GUARD && G_SEEN(i) ->
          d_step { flagit(t[i].cand, i); READS(i,t[i].cand); t[i].seen=0; t[i].seent=0; t[i].pc=FLAGGED;
            printf("I%d claims M%d\n", i, t[i].cand) }
          if
#if UNKNOWN > 0
          :: d_step { unknowns<UNKNOWN -> unknowns++; printf("I%d does not know of it\n", i);
               forget(i); t[i].pc=IDLE }
#endif
          :: true
          fi
       :: else -> d_step { forget(i); t[i].pc=IDLE }
       fi }
  :: d_step { t[i].pc==FLAGGED ->
#ifndef B_RUNEARLY
       read_run(i);
#endif
       t[i].pc=LANE }
#ifdef SHORTRUNS
  :: d_step { t[i].pc==FLAGGED -> t[i].behind=0; t[i].pc=LANE }
#endif
  /* ---- handler threads ---- */
  :: d_step { t[i].pc==LANE && !t[i].cur && !t[i].res && !t[i].stop -> start(i, t[i].flag) }
#ifdef B_AHEAD                  /* the next handler starts before the settle that flags its message */
  :: d_step { t[i].pc==LANE && !t[i].cur && t[i].res==R_DONE && !t[i].unknown && t[i].behind ->
       nx=LOWEST(t[i].behind); start(i, nx); nx=0 }
#endif
#ifdef POISON
  :: d_step { t[i].cur==POISON -> killed(i) }
#define BENIGN(i) (t[i].cur!=POISON)
#else
#define BENIGN(i) true
#endif
  :: d_step { t[i].pc==LANE && t[i].cur && t[i].cur==t[i].flag && BENIGN(i) && !t[i].res ->
       t[i].cur=0; t[i].res=R_DONE }
#ifndef NOFAIL
  :: d_step { t[i].pc==LANE && t[i].cur && t[i].cur==t[i].flag && BENIGN(i) && !t[i].res ->
       t[i].cur=0; t[i].res=R_FAILED }
#ifdef REJECT
  :: d_step { t[i].pc==LANE && t[i].cur && t[i].cur==t[i].flag && BENIGN(i) && !t[i].res ->
       t[i].cur=0; t[i].res=R_DEAD }
#endif
#endif
#if LATERS > 0
  :: d_step { t[i].pc==LANE && t[i].cur && t[i].cur==t[i].flag && !t[i].res && laters_used<LATERS ->
       laters_used++; t[i].cur=0; t[i].res=R_LATER }
#endif
  :: d_step { t[i].pc==DRAIN && t[i].cur -> t[i].cur=0; t[i].pc=IDLE }
  :: d_step { t[i].ghost -> t[i].ghost=0 }
  /* ---- settle ---- */
  :: atomic { t[i].pc==LANE && t[i].res && !t[i].unknown && !pend ->
       if
       :: FENCE(i) ->
          if
          :: d_step { settle(i); went_on(i) }
#if UNKNOWN > 0
          :: d_step { unknowns<UNKNOWN -> unknowns++; settle(i); nx=0; t[i].unknown=true;
               printf("I%d does not know of it\n", i) }
#endif
#if PENDING > 0
          :: d_step { pendings<PENDING -> pendings++; pend=t[i].flag; pendres=t[i].res; pendid=t[i].id;
               pendnext=(t[i].res==R_DONE && !t[i].stop -> LOWEST(t[i].behind) : 0);
               if :: pendnext && !(st[pendnext]==NEW && due[pendnext]) -> pendnext=0 :: else fi;
               t[i].unknown=true; printf("I%d: the commit of M%d is under way, answer lost\n", i, pend) }
#endif
#if DELAYED > 0
          :: d_step { flown<DELAYED && !flym -> flown++; flym=t[i].flag; flyres=t[i].res; flyid=t[i].id;
               flyt=t[i].lt; flyl=t[i].lat;
               flynext=(t[i].res==R_DONE && !t[i].stop -> LOWEST(t[i].behind) : 0); t[i].unknown=true;
               t[i].doubt=t[i].doubt|bit(t[i].flag);
               printf("I%d gives up on a settle of M%d\n", i, t[i].flag) }
#endif
          fi
       :: else -> d_step { printf("I%d: M%d is no longer ours\n", i, t[i].flag); lane_ends(i) }
       fi }
#ifdef B_RESENDS                /* not looked at: sent again */
  :: d_step { t[i].pc==LANE && t[i].unknown -> t[i].unknown=false }
#elif defined(B_UNANSWERED)     /* given up: the claim loop goes on before it is answered */
  :: d_step { t[i].pc==LANE && t[i].unknown -> lane_ends(i) }
#else
  :: d_step { t[i].pc==LANE && t[i].unknown && MAYLOOK ->          /* Writer._look, Caller._was_committed */
       t[i].unknown=false; nx=LOWEST(t[i].behind);
       if
       :: OWNED(t[i].flag, t[i].id) -> nx=0;
#ifdef TX
          if :: t[i].res==R_DONE -> t[i].res=R_NONE :: else fi
#endif
       :: !OWNED(t[i].flag, t[i].id) && nx && OWNED(nx, t[i].id) -> went_on(i)
       :: else -> nx=0; lane_ends(i)
       fi }
#endif
#ifndef B_NOSWEEP               /* release_unknown: while State.claiming is held */
  :: d_step { (t[i].pc==IDLE || t[i].pc==LOOKED) && MINE(t[i].id) && !LOCKED(MINE(t[i].id)) ->
       k=MINE(t[i].id); give_back(k); printf("I%d gives M%d back, not in hand\n", i, k); k=0 }
#endif
  /* ---- death and stop ---- */
#if KILLS > 0
  :: d_step { kills<KILLS && t[i].pc!=IDLE -> kills++; killed(i) }
#endif
#if STOPS > 0
  :: d_step { stops<STOPS && !t[i].stop -> stops++; t[i].stop=true; printf("I%d is to stop\n", i) }
  :: d_step { t[i].stop && t[i].pc==LANE && !t[i].cur && !t[i].res -> t[i].res=R_RELEASED }
  :: d_step { t[i].stop && t[i].pc==IDLE && !t[i].ghost && HOLDS_NOTHING(i) ->
#ifdef C_STOP
       assert(lease[t[i].id]!=LIVE || !MINE(t[i].id));
#endif
       if :: lease[t[i].id]!=TAKEN -> lease[t[i].id]=NONE :: else fi;
       printf("I%d has stopped\n", i); reborn(i) }
#endif
  od }

#if EXPIRIES > 0
proctype Heartbeat(byte i) {    /* renewal: 0 rows, so a new id; the old handler may still run. What is
                                   over, but not taken over, is renewed; or somebody has it locked */
end:
  do
#ifdef B_RENEWS_TAKEN           /* renewal does not ask whether it was taken over */
  :: d_step { lease[t[i].id]==TAKEN -> lease[t[i].id]=LIVE }
#endif
#ifndef STRICT                  /* the older rule: what has expired is lost */
  :: d_step { lease[t[i].id]==EXPIRED -> lease[t[i].id]=LIVE; printf("I%d renews late\n", i) }
#endif
  :: d_step { lease[t[i].id]!=LIVE -> printf("I%d has lost its lease\n", i);
       if :: t[i].cur -> t[i].ghost=t[i].cur :: else fi; reborn(i) }
  od }
#endif

inline recovered(m) {
  st[m]=FAILED; tries[m]=tries[m]+CRASHTRY; due[m]=true; CLEAR(m);
  printf("M%d is recovered\n", m);
#ifdef C_BLAME
  assert(m==POISON || tries[m]==0);
#endif
  skip }
#define MAYBEGIN(l) (rpc[r]==0 && (lease[l]==EXPIRED || lease[l]==TAKEN))
proctype Recovery(byte r) {     /* Recovery.run of somebody who lives */
end:
  do
  :: d_step { MAYBEGIN(1) -> rx[r]=1; rpc[r]=1 }
  :: d_step { MAYBEGIN(2) -> rx[r]=2; rpc[r]=1 }
  :: d_step { MAYBEGIN(3) -> rx[r]=3; rpc[r]=1 }
  :: d_step { MAYBEGIN(4) -> rx[r]=4; rpc[r]=1 }
  :: d_step { MAYBEGIN(5) -> rx[r]=5; rpc[r]=1 }
  :: d_step { MAYBEGIN(6) -> rx[r]=6; rpc[r]=1 }
  :: d_step { MAYBEGIN(7) -> rx[r]=7; rpc[r]=1 }
  :: d_step { rpc[r]==1 ->
       if
       :: lease[rx[r]]==EXPIRED || lease[rx[r]]==TAKEN ->
#ifndef B_NOTAKEOVER
          lease[rx[r]]=TAKEN; printf("R%d takes over lease %d\n", r, rx[r]);
#endif
          rpc[r]=2
       :: else -> rx[r]=0; rpc[r]=0
       fi }
  :: d_step { rpc[r]==2 -> rrow[r]=MINE(rx[r]); rpc[r]=3 }
  :: d_step { rpc[r]==3 && !LOCKED(rrow[r]) -> if :: DEADS(r) -> recovered(rrow[r]) :: else fi; rrow[r]=0; rpc[r]=4 }
  :: d_step { rpc[r]==4 -> if :: DROPS(rx[r]) -> lease[rx[r]]=NONE :: else fi; rx[r]=0; rpc[r]=0 }
#ifndef B_NOORPHANS             /* rows of ids without a lease stay */
  :: d_step { rpc[r]==0 && RUNNING && by[RUNROW] && lease[by[RUNROW]]==NONE ->
       rx[r]=by[RUNROW]; rpc[r]=5 }
  :: d_step { rpc[r]==5 -> if :: lease[rx[r]]==NONE -> rpc[r]=6 :: else -> rx[r]=0; rpc[r]=0 fi }
  :: d_step { rpc[r]==6 -> rrow[r]=MINE(rx[r]); rpc[r]=7 }
#ifdef B_RECOVERS_ANY
  :: d_step { rpc[r]==7 -> rrow[r]=(rrow[r] -> rrow[r] : RUNROW); rpc[r]=8 }
#else
  :: d_step { rpc[r]==7 -> rpc[r]=8 }
#endif
  :: d_step { rpc[r]==8 && !LOCKED(rrow[r]) -> if :: DEADS(r) -> recovered(rrow[r]) :: else fi;
       rrow[r]=0; rx[r]=0; rpc[r]=0 }
#endif
#if RKILLS > 0
  :: d_step { rpc[r]!=0 && rkills<RKILLS -> rkills++; rpc[r]=0; rx[r]=0; rrow[r]=0;
       printf("R%d dies\n", r) }
#endif
  od }

#define UNHELD(l) (lease[l]==LIVE && !INUSE(l))
proctype Time() {               /* leases of the dead expire; those of the living as often as allowed */
end:
  do
  :: d_step { UNHELD(1) -> lease[1]=EXPIRED }
  :: d_step { UNHELD(2) -> lease[2]=EXPIRED }
  :: d_step { UNHELD(3) -> lease[3]=EXPIRED }
  :: d_step { UNHELD(4) -> lease[4]=EXPIRED }
  :: d_step { UNHELD(5) -> lease[5]=EXPIRED }
  :: d_step { UNHELD(6) -> lease[6]=EXPIRED }
  :: d_step { UNHELD(7) -> lease[7]=EXPIRED }
#if EXPIRIES > 0
  :: d_step { expiries<EXPIRIES && t[1].pc!=IDLE && lease[t[1].id]==LIVE ->
       expiries++; lease[t[1].id]=EXPIRED; printf("I1 stands still, its lease expires\n") }
  :: d_step { expiries<EXPIRIES && t[2].pc!=IDLE && lease[t[2].id]==LIVE ->
       expiries++; lease[t[2].id]=EXPIRED; printf("I2 stands still, its lease expires\n") }
#endif
  od }

#if defined(BACKOFF)
proctype Instants() {           /* available_at comes */
end:
  do :: d_step { !due[1] -> due[1]=true }
     :: d_step { !due[2] -> due[2]=true }
     :: d_step { !due[N] -> due[N]=true }
  od }
#endif

#if DELAYED > 0
proctype Network() {            /* executes what its sender has given up */
end:
  do
  :: d_step { flym && !pend ->
       if
       :: OWNED(flym, flyid) && SAME_CLAIM ->
          printf("a delayed settle of M%d (%d)\n", flym, flyres); written(flym, flyres);
          if
          :: flynext && st[flynext]==NEW && due[flynext] && G_GUARD ->
#ifdef C_FENCE
             epoch[flynext]=(epoch[flynext]+1)%8;
#endif
             st[flynext]=PROCESSING; by[flynext]=flyid
          :: else
          fi
       :: else
       fi;
       flym=0; flyres=0; flynext=0; flyid=0; flyt=0; flyl=0 }
  od }
#endif

#if PENDING > 0
proctype Server() {             /* ends a COMMIT whose client is gone, one way or the other */
end:
  do
  :: d_step { pend ->
       assert(OWNED(pend, pendid)); printf("a pending commit of M%d (%d)\n", pend, pendres); written(pend, pendres);
       if
       :: pendnext -> st[pendnext]=PROCESSING; by[pendnext]=pendid; printf("... the flag moves to M%d\n", pendnext);
#ifdef C_FENCE
          epoch[pendnext]=(epoch[pendnext]+1)%8;
#endif
          assert(HOWMANY<=1)
       :: else
       fi;
       pend=0; pendres=0; pendnext=0; pendid=0 }
  :: d_step { pend -> printf("a pending commit of M%d is rolled back\n", pend);
       pend=0; pendres=0; pendnext=0; pendid=0 }
  od }
#endif

#ifdef LATE
proctype Producer() { d_step { vis[1]=true; printf("M1 is committed\n") } }
#endif

inline rerun(m) {
  st[m]=NEW; tries[m]=0; laters[m]=0; due[m]=true; CLEAR(m); reruns++; printf("ops rerun M%d\n", m);
#ifdef C_TRIES
  starts[m]=0;
#endif
#ifdef C_ONCE
  effects[m]=0;
#endif
#ifdef EDIT
  gone=gone & (255-bit(m));
#endif
  skip }
#ifdef EDIT
#ifdef B_EDITS_NEW              /* a new message stays new */
#define PARKS(m) skip
#else
#define PARKS(m) if :: st[m]==NEW -> st[m]=FAILED :: else fi
#endif
#define EDITS_OF(m) (!(edited & bit(m)) && vis[m] && (st[m]==NEW || st[m]==FAILED) && !LOCKED(m) && MAYEDIT(m))
inline edit(m) { edited=edited|bit(m); PARKS(m); printf("ops edit M%d\n", m) }
#define GOES(m) gone=gone|bit(m)
#else
#define GOES(m) skip
#endif
#ifdef FORCED
#define RERUNS_OF(m) (reruns<RERUNS && MAYRERUN(m) && (DEAD(m) || (vis[m] && st[m]==DONE)))
#else
#define RERUNS_OF(m) (reruns<RERUNS && MAYRERUN(m) && DEAD(m))
#endif
#define DISCARDS_OF(m) (!discarded && vis[m] && CLAIMABLE(m) && !LOCKED(m))
#ifdef BLOCK
#define GONE (MAXT+1)
#else
#define GONE MAXT
#endif
#if defined(RERUN) || defined(FORCED) || defined(DISCARD) || defined(EDIT)
proctype Ops() {
end:
  do
#if defined(RERUN) || defined(FORCED)
  :: d_step { RERUNS_OF(1) -> rerun(1) }
  :: d_step { RERUNS_OF(2) -> rerun(2) }
#endif
#ifdef DISCARD
  :: d_step { DISCARDS_OF(1) -> discarded=true; st[1]=FAILED; tries[1]=GONE; GOES(1); printf("ops discard M1\n") }
  :: d_step { DISCARDS_OF(2) -> discarded=true; st[2]=FAILED; tries[2]=GONE; GOES(2); printf("ops discard M2\n") }
#endif
#ifdef EDIT
  :: d_step { EDITS_OF(1) -> edit(1) }
  :: d_step { EDITS_OF(2) -> edit(2) }
#endif
  :: false
  od }
#endif

#ifdef FOREIGN
proctype Foreign() {            /* samples/plain_sql_consumer.py: knows status only, never dies */
end:
  do
  :: d_step { fpc==0 && (READY(1) || READY(2) || READY(N)) && !RUNNING ->
       k=1; do :: k<=N && !(vis[k] && CLAIMABLE(k)) -> k++ :: else -> break od;
       if :: k<=N && st[k]==NEW -> fcand=k; fpc=1 :: else fi; k=0 }
  :: d_step { fpc==1 && !pend ->
       if
       :: st[fcand]==NEW && G_GUARD ->
          st[fcand]=PROCESSING; fcur=fcand; fpc=2; printf("F claims M%d\n", fcand);
          assert(HOWMANY<=1);
#ifdef C_FENCE
          epoch[fcand]=(epoch[fcand]+1)%8;
#endif
#ifdef C_TRIES
          starts[fcand]++; assert(starts[fcand]<=MAXT);
#endif
#ifdef C_ALONE
          k=1; do :: k<=W -> assert(!ENTITLED(k) || !t[k].cur); k++ :: else -> break od; k=0;
#endif
          fcand=0
       :: else -> fcand=0; fpc=0
       fi }
  :: d_step { fpc==2 -> st[fcur]=DONE; printf("F ends M%d\n", fcur); fcur=0; fpc=0 }
#ifndef NOFAIL
  :: d_step { fpc==2 -> st[fcur]=FAILED; tries[fcur]++; printf("F fails M%d\n", fcur); fcur=0; fpc=0 }
#endif
  od }
#endif

init {
  atomic {
    k=1; do :: k<=N -> vis[k]=true; due[k]=true; k++ :: else -> break od;
    k=1; do :: k<=W -> t[k].id=k; lease[k]=LIVE; k++ :: else -> break od;
#ifdef LATE
    vis[1]=false; run Producer();
#endif
#if defined(RERUN) || defined(FORCED) || defined(DISCARD) || defined(EDIT)
    run Ops();
#endif
#ifdef BACKOFF
    run Instants();
#endif
#if DELAYED > 0
    run Network();
#endif
#if PENDING > 0
    run Server();
#endif
#ifdef FOREIGN
    run Foreign();
#endif
#if KILLS > 0 || EXPIRIES > 0 || STOPS > 0 || defined(POISON) || defined(B_KEEPS)
    run Time(); run Recovery(1);
#if R == 2
    run Recovery(2);
#endif
#endif
    k=1;
    do :: k<=W -> run Instance(k);
#if EXPIRIES > 0
       run Heartbeat(k);
#endif
       k++ :: else -> break od;
    k=0
  } }

#ifdef LIVENESS
#if N == 3
ltl all_end { []<> (ENDED(1) && ENDED(2) && ENDED(3)) }
#else
ltl all_end { []<> (ENDED(1) && ENDED(2)) }
#endif
#endif
