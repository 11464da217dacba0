/* Transactional batches: the protocol of flag.pml, in which a lane may hand
 * its head and the first of the run behind it to one transactional handler. README.md lists what is checked.
 *
 *   flag the head (commit) · read the run (new statement) · the handler gets head and followers, its writes are
 *   in one open transaction · in that transaction: head 1 -> 2 WHERE status=1 AND claimed_by=me,
 *   followers 0 -> 2 WHERE status=0 AND due, next 0 -> 1 by me · every count right: COMMIT, else ROLLBACK
 *
 * M1..M[NA] are of object A, the NB after them of object B. One step is one statement, or one transaction
 * under row locks; everything else may come between. (batch_locks.pml has the locks, batch_blame.pml who is
 * blamed over several objects.)
 *   -DC_... -DSTARTS= -DHEADS= -DALONE= -DBLAME= -DDEATHS=  what is checked
 *   -DB_...  a broken variant      -DREACH=  that it happens at all      other -D: bounds, faults, alternatives
 */
#ifndef NA
#define NA 3
#endif
#ifndef NB
#define NB 0
#endif
#define N (NA+NB)
#ifndef W
#define W 2                     /* instances */
#endif
#ifndef MAXT
#define MAXT 2                  /* max_tries */
#endif
#ifndef BMAX
#define BMAX 9                  /* longest batch */
#endif
#ifndef KILLS
#define KILLS 0                 /* a process dies from outside */
#endif
#ifndef EXPIRIES
#define EXPIRIES 0              /* a live process stands still beyond its lease, then goes on */
#endif
#ifndef STOPS
#define STOPS 0
#endif
#ifndef UNKNOWN
#define UNKNOWN 0               /* the answer to a COMMIT is lost; it arrived, or it did not */
#endif
#ifndef PENDING
#define PENDING 0               /* ... it is still under way, and holds its locks; then done, or rolled back */
#endif
#ifndef RERUNS
#define RERUNS 1                /* with RERUN or FORCED */
#endif
#ifndef POISON
#define POISON 0                /* bits: these kill their process whenever they are started */
#endif
#ifndef FAILING
#define FAILING 0               /* bits: these fail whenever they are started (with NOFAIL) */
#endif
/* LATE=m: Mm is committed late · RERUN: ops rerun a dead message · FORCED: also a done one · DISCARD: ops discard
 * FOREIGN: the plain consumer · BACKOFF: failed messages wait · NOTYET=m: Mm is sent with a delay · BLOCK: on_dead
 * NOFAIL: handlers do not fail (else any may, at any start) · SHORTRUNS: the run may not be read to its end
 *
 * The rule: a head with a try or a crash behind it runs alone, and its lane makes no batch to its end; so does
 * every message where max_tries is 1. Alternatives:
 *   CRASHONLY  only a head with crash_times > 0 runs alone, and its lane batches again behind it
 *   MARK       the lane batches again, but recovery marks those behind a crashed head with crash_times
 *   CFIRST     (with CRASHONLY) the first message of a lane runs alone, then batches
 *   NOBATCH    transactional handlers as they are today
 *   PREFIX     what was before the first that fails is settled, and that one is the next (savepoints, ctx.fail)
 *   MULTI      one transaction over the lanes of A and B       GROUP  the same without followers (group commit) */

#define NEW 0
#define PROCESSING 1
#define DONE 2
#define FAILED 3

#define NONE 0                  /* states of a lease */
#define LIVE 1
#define EXPIRED 2
#define TAKEN 3

#define IDLE 0                  /* where a lane is */
#define LOOKED 1
#define FLAGGED 2
#define LANE 3
#define HALF 4                  /* B_TWOTX only */

#define R_NONE 0
#define R_DONE 1
#define R_FAILED 2
#define R_RELEASED 3

#define IDS 7
#define bit(m) (1<<(m))
#define ALLBITS 255

#if NB > 0
#define O 2
#define OBJ(m) ((m)<=NA -> 1 : 2)
#define L(i,o) (((i)-1)*2+(o))
#define WHO(l) (((l)+1)/2)
#define OF(l) (2-((l)%2))
#else
#define O 1
#define OBJ(m) 1
#define L(i,o) (i)
#define WHO(l) (l)
#define OF(l) 1
#endif

/* the table */
byte st[N+1]; byte tries[N+1]; byte crashes[N+1]; byte by[N+1]; bool vis[N+1]; bool due[N+1];
byte lease[IDS+1];
/* the processes */
typedef Inst {
  byte id; bool stop; bool joint;
  byte ghost;                                   /* objects (bits) whose old handler still runs */
#if EXPIRIES > 0
  byte gflag; byte gbatch; byte gid             /* ... its transaction, under its old id (object A, not joint) */
#endif
}
typedef Lane {
  byte pc; byte cand; byte seen; byte seent;    /* the candidate, its status and tries as seen */
  byte flag; byte behind;                       /* the flagged one; the run behind it (bits) */
  byte batch; byte res;                         /* in the open transaction (bits); what came of it */
  byte lt;                                      /* tries of the flagged one at its claim */
  bool unknown; bool solo; bool first;
#ifdef C_SAW
  byte saw;                                     /* unfinished when the run was read (bits) */
#endif
#ifdef C_FENCE
  byte epoch; byte stale                        /* stale: flagged by others since the run was read */
#endif
}
Inst t[W+1];
Lane v[W*O+1];
byte fpc; byte fcand; byte fcur;                /* the foreign consumer */
byte rx; byte rrow; byte rpc;                   /* who recovers */
byte flybatch; byte flym; byte flynext; byte flyid;   /* a COMMIT under way: batch, head, next, id */
byte kills; byte expiries; byte stops; byte unknowns; byte flown; byte reruns; bool discarded;
byte gaveup;                                    /* discarded, not rerun (bits) */
#ifdef STARTS
byte starts[N+1];
#endif
#ifdef HEADS
byte heads[N+1];                /* starts with its own row at 1 */
#endif
#ifdef ALONE
byte alone[N+1];                /* starts in no batch */
#endif
#ifdef C_DIES
byte fails[N+1];
#endif
#ifdef DEATHS
byte deaths;
#endif
#ifdef C_FENCE
byte epoch[N+1];
#endif
#ifdef C_ONCE
byte effects[N+1];
#endif
byte k; byte nx; byte x; byte m_; bool stopread;

#if N == 2
#define ANY(P,a) (P(1,a) || P(2,a))
#define EVERY(P,a) (P(1,a) && P(2,a))
#define COUNT(P,a) (P(1,a) + P(2,a))
#define FIRST(P,a) (P(1,a) -> 1 : (P(2,a) -> 2 : 0))
#elif N == 3
#define ANY(P,a) (P(1,a) || P(2,a) || P(3,a))
#define EVERY(P,a) (P(1,a) && P(2,a) && P(3,a))
#define COUNT(P,a) (P(1,a) + P(2,a) + P(3,a))
#define FIRST(P,a) (P(1,a) -> 1 : (P(2,a) -> 2 : (P(3,a) -> 3 : 0)))
#elif N == 4
#define ANY(P,a) (P(1,a) || P(2,a) || P(3,a) || P(4,a))
#define EVERY(P,a) (P(1,a) && P(2,a) && P(3,a) && P(4,a))
#define COUNT(P,a) (P(1,a) + P(2,a) + P(3,a) + P(4,a))
#define FIRST(P,a) (P(1,a) -> 1 : (P(2,a) -> 2 : (P(3,a) -> 3 : (P(4,a) -> 4 : 0))))
#else
#define ANY(P,a) (P(1,a) || P(2,a) || P(3,a) || P(4,a) || P(5,a))
#define EVERY(P,a) (P(1,a) && P(2,a) && P(3,a) && P(4,a) && P(5,a))
#define COUNT(P,a) (P(1,a) + P(2,a) + P(3,a) + P(4,a) + P(5,a))
#define FIRST(P,a) (P(1,a) -> 1 : (P(2,a) -> 2 : (P(3,a) -> 3 : (P(4,a) -> 4 : (P(5,a) -> 5 : 0)))))
#endif

#define DEAD(m) (st[m]==FAILED && tries[m]>=MAXT)
#define ENDED(m) (vis[m] && (st[m]==DONE || DEAD(m)))
#ifdef BLOCK
#define UNFINISHED(m) (vis[m] && st[m]!=DONE && !(st[m]==FAILED && tries[m]>MAXT))
#define GONE (MAXT+1)
#else
#define UNFINISHED(m) (vis[m] && st[m]!=DONE && !DEAD(m))
#define GONE MAXT
#endif
#define CLAIMABLE(m) (st[m]==NEW || (st[m]==FAILED && tries[m]<MAXT))
#define READY(m) (vis[m] && due[m] && CLAIMABLE(m))
#define OWNED(m,who) (st[m]==PROCESSING && by[m]==(who))
#define UNF_OF(m,o) (OBJ(m)==(o) && UNFINISHED(m))
#define RUNS_OF(m,o) (OBJ(m)==(o) && vis[m] && st[m]==PROCESSING)
#define MINE_OF(m,l) (OBJ(m)==OF(l) && OWNED(m, t[WHO(l)].id))
#define IN(m,s) (((s) & bit(m)) != 0)
#define BY(m,x) (by[m]==(x))
#define HEAD(o) FIRST(UNF_OF,o)
#define RUNNING(o) ANY(RUNS_OF,o)
#define MINE(who) FIRST(OWNED,who)
#define KNOWN(l) FIRST(MINE_OF,l)
#define LOWEST(s) FIRST(IN,s)
#if W == 1
#define INUSE(l) (t[1].id==l)
#else
#define INUSE(l) (t[1].id==l || t[2].id==l)
#endif
#define ENTITLED(i) (lease[t[i].id]==LIVE)
#define HOLDS_NOTHING(i) (!MINE(t[i].id))
#define LOCKED(m) (flybatch && (IN(m,flybatch) || (m)==flynext))
#define FLYING(o) (flybatch && OBJ(flym)==(o))

/* ---- the conditions, and what is left of them in the broken variants ---- */
#ifdef B_GUARD                  /* there is no unique index */
#define G_GUARD(o) true
#else
#define G_GUARD(o) (!RUNNING(o))
#endif
#ifdef B_FENCE                  /* the head is put to 2 whoever has it */
#define FENCE(l) (st[v[l].flag]==PROCESSING || st[v[l].flag]==FAILED || st[v[l].flag]==NEW)
#elif defined(B_NOHEAD)         /* ... its count is not looked at */
#define FENCE(l) (v[l].res==R_DONE || OWNED(v[l].flag, t[WHO(l)].id))
#else
#define FENCE(l) (OWNED(v[l].flag, t[WHO(l)].id) && (v[l].res==R_DONE || tries[v[l].flag]==v[l].lt))
#endif
#ifdef B_NODUE                  /* followers are not asked whether they are due */
#define FREE(m) (st[m]==NEW)
#else
#define FREE(m) (st[m]==NEW && due[m])
#endif
#define FOK(m,l) (!IN(m,v[l].batch) || m==v[l].flag || FREE(m))
#if defined(B_NOCOUNT) || defined(B_ANYFOLLOWER) /* their count is not looked at; their status is not asked for */
#define ALLOK(l) true
#else
#define ALLOK(l) EVERY(FOK,l)
#endif
#ifdef B_NEXTANY                /* the next is flagged whatever it is */
#define NEXTOK(m) true
#else
#define NEXTOK(m) (st[m]==NEW && due[m])
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
#ifdef B_RECOVERS_ANY
#define DEADS (rrow && st[rrow]==PROCESSING && by[rrow])
#else
#define DEADS (rrow && OWNED(rrow, rx))
#endif
#ifdef B_CRASHFREE              /* a crash counts no try */
#define CRASHTRY 0
#else
#define CRASHTRY 1
#endif
#ifdef B_GHOST                  /* the new id claims what an old handler still works on */
#define NO_GHOST(i,o) true
#else
#define NO_GHOST(i,o) (!IN(o,t[i].ghost))
#endif
#ifdef B_NOTAKEOVER             /* the rows are given back, the lease stays as it is */
#define DROPS(l) (lease[l]==TAKEN || lease[l]==EXPIRED)
#else
#define DROPS(l) (lease[l]==TAKEN)
#endif
#ifdef NOBATCH
#define MAYLEAD(m) false
#elif defined(B_CRASHSHARE)     /* whoever was in a crash may be in a batch again */
#define MAYLEAD(m) true
#elif defined(CRASHONLY)
#define MAYLEAD(m) (crashes[m]==0)
#elif defined(B_LASTTRY)        /* with max_tries = 1, too */
#define MAYLEAD(m) (tries[m]==0 && crashes[m]==0)
#else
#define MAYLEAD(m) (tries[m]==0 && crashes[m]==0 && MAXT>1)
#endif
#ifdef B_CRASHSHARE
#define MAYFOLLOW(m) true
#else
#define MAYFOLLOW(m) (crashes[m]==0)
#endif
#ifdef CFIRST
#define NOTFIRST(l) (!v[l].first)
#else
#define NOTFIRST(l) true
#endif
#if defined(GROUP)
#define MAYBATCH(l) false
#else
#define MAYBATCH(l) (MAYLEAD(v[l].flag) && !v[l].solo && NOTFIRST(l))
#endif
#define NEXTOF(l) LOWEST(v[l].behind & (ALLBITS-v[l].batch))
#define POISONED(l) ((v[l].batch & (POISON)) != 0)
#define FAILSALWAYS(l) ((v[l].batch & (FAILING)) != 0)
#ifdef NOFAIL
#define MAYFAIL(l) (!POISONED(l) && FAILSALWAYS(l))
#else
#define MAYFAIL(l) (!POISONED(l))
#endif
#define SINGLE(l) (v[l].batch==bit(v[l].flag))
#define ACTIVE(l) (v[l].batch && !v[l].unknown && v[l].res!=R_FAILED)   /* its transaction is open */
#ifdef B_LOOKPLAIN              /* the look after a lost COMMIT does not wait for locks: it may see the past */
#define MAYLOOK(o) true
#else
#define MAYLOOK(o) (!FLYING(o))
#endif

#if EXPIRIES > 0
#define FORGET_GHOST(i,o) if :: o==1 -> t[i].gflag=0; t[i].gbatch=0; t[i].gid=0 :: else fi
#define GHOSTID(x) (t[1].gid==(x) || t[W].gid==(x))
#else
#define FORGET_GHOST(i,o) skip
#define GHOSTID(x) false
#endif
#ifdef REACH                    /* -DREACH=n: that this happens at all */
#define REACHED(n) assert(REACH!=n)
#else
#define REACHED(n) skip
#endif

inline forget(l) {
  v[l].pc=IDLE; v[l].cand=0; v[l].seen=0; v[l].seent=0; v[l].flag=0; v[l].behind=0; v[l].batch=0; v[l].res=0;
  v[l].lt=0; v[l].unknown=0; v[l].solo=0; v[l].first=0;
#ifdef C_SAW
  v[l].saw=0;
#endif
#ifdef C_FENCE
  v[l].epoch=0; v[l].stale=0;
#endif
  skip }
inline reborn(i) {              /* a new id: the lowest that nothing remembers */
  forget(L(i,1));
#if O == 2
  forget(L(i,2));
#endif
  t[i].stop=0; t[i].joint=0; t[i].id=0; x=1;
  do :: x<=IDS && (lease[x]!=NONE || ANY(BY,x) || INUSE(x) || GHOSTID(x) || rx==x || flyid==x) -> x++
     :: else -> break od;
  assert(x<=IDS); t[i].id=x; lease[x]=LIVE; x=0 }
inline killed(i) {
  printf("I%d dies\n", i); t[i].ghost=0; FORGET_GHOST(i,1); reborn(i) }
inline poisoned(i) {
#ifdef DEATHS
  deaths++; assert(deaths<=DEATHS);
#endif
  killed(i) }
inline flagit(m, l, i) {
  st[m]=PROCESSING; by[m]=t[i].id; due[m]=true; v[l].flag=m; v[l].lt=tries[m];
#ifdef C_FENCE
  epoch[m]=(epoch[m]+1)%8; v[l].epoch=epoch[m]; claimed_from(m, l);
#endif
  assert(COUNT(RUNS_OF,OBJ(m))<=1) }
inline claimed_from(m, l) {     /* the others who have it in their run, or in their batch */
  m_=1;
  do :: m_<=W*O -> if :: m_!=l && (IN(m,v[m_].behind) || IN(m,v[m_].batch)) -> v[m_].stale=v[m_].stale|bit(m)
                      :: else fi; m_++
     :: else -> break od;
  m_=0 }
inline give_back(m) { st[m]=(tries[m]>0 -> FAILED : NEW); due[m]=true; CLEAR(m) }
inline lane_ends(l) { forget(l) }
inline read_run(l, o) {         /* new and due ones, up to the first that is not */
  v[l].behind=0; k=1; stopread=false;
  do
  :: k<=N ->
     if
     :: OBJ(k)==o && UNFINISHED(k) && k<v[l].cand ->
#ifdef B_RUNEARLY
        skip
#else
        stopread=true           /* a lower one has appeared */
#endif
     :: OBJ(k)==o && UNFINISHED(k) && k>v[l].cand && !stopread ->
        if
        :: st[k]==NEW && due[k] -> v[l].behind=v[l].behind|bit(k)
#ifdef B_SKIPS
        :: else -> skip
#else
        :: else -> stopread=true
#endif
        fi
     :: else
     fi;
#ifdef C_SAW
     if :: OBJ(k)==o && UNFINISHED(k) -> v[l].saw=v[l].saw|bit(k) :: else fi;
#endif
     k++
  :: else -> break
  od;
  k=0; stopread=false }
inline choose(l) {              /* not in a d_step: any number of followers, in order */
  v[l].batch=bit(v[l].flag); x=1;
  do
#ifdef B_GAP                    /* the batch leaves one out */
  :: MAYBATCH(l) && x<BMAX && NEXTOF(l) && (v[l].behind & (ALLBITS-v[l].batch-bit(NEXTOF(l)))) ->
     x=BMAX; v[l].batch=v[l].batch|(v[l].behind & (ALLBITS-v[l].batch-bit(NEXTOF(l))))
#endif
  :: MAYBATCH(l) && x<BMAX && NEXTOF(l) && MAYFOLLOW(NEXTOF(l)) -> v[l].batch=v[l].batch|bit(NEXTOF(l)); x++
  :: x=0; break
  od }
inline start(l, i, o) {         /* the handlers of a batch start: what must be true then */
  k=1;
  do :: k<=N -> if :: IN(k,v[l].batch) -> printf("I%d starts M%d\n", i, k) :: else fi; k++ :: else -> break od;
#ifdef C_ALONE
  k=1;
  do :: k<=W*O -> assert(k==l || OF(k)!=o || !ENTITLED(i) || !ENTITLED(WHO(k)) || !ACTIVE(k)); k++
     :: else -> break od;
  assert(!ENTITLED(i) || !fcur || OBJ(fcur)!=o);
  assert(!IN(o,t[i].ghost));
#endif
#ifdef C_ORDER
  k=1;
  do :: k<=N -> assert(!ENTITLED(i) || !UNF_OF(k,o) || IN(k,v[l].batch) || !(v[l].batch>>(k+1))); k++
     :: else -> break od;
#endif
#ifdef C_FLAG                    /* under its flag; and nothing that is done starts again */
  assert(!ENTITLED(i) || OWNED(v[l].flag, t[i].id));
  k=1; do :: k<=N -> assert(!ENTITLED(i) || !IN(k,v[l].batch) || st[k]!=DONE); k++ :: else -> break od;
#endif
#ifdef STARTS
  k=1;
  do :: k<=N -> if :: IN(k,v[l].batch) -> starts[k]++; assert(starts[k]<=STARTS) :: else fi; k++
     :: else -> break od;
#endif
#ifdef HEADS
  heads[v[l].flag]++; assert(heads[v[l].flag]<=HEADS);
#endif
#ifdef ALONE
  if :: SINGLE(l) -> alone[v[l].flag]++; assert(alone[v[l].flag]<=ALONE) :: else fi;
#endif
  k=0 }
inline effect(m) {              /* what a handler wrote is committed */
#ifdef C_ONCE
  effects[m]++; assert(effects[m]<=1);
#endif
#ifdef C_GIVENUP
  assert(!IN(m,gaveup));
#endif
  skip }
inline rolled_back(l) {         /* nothing of it has happened: head alone */
  v[l].batch=0; v[l].res=0;
#ifndef B_NOSOLO
  v[l].solo=true;
#endif
  skip }
inline settle(l, i, o) {        /* one transaction; nx = the next that was flagged */
#ifdef C_FENCE
  assert(v[l].epoch==epoch[v[l].flag]);
  assert(v[l].res!=R_DONE || !(v[l].stale & v[l].batch & (ALLBITS-bit(v[l].flag))));
#endif
  nx=0;
  if
  :: v[l].res==R_DONE ->
     if :: v[l].batch==14 -> REACHED(1) :: else fi;
     k=1;
     do
     :: k<=N ->
        if
        :: IN(k,v[l].batch) ->
#ifdef C_SAW                    /* no earlier one that was there when the run was read is left out */
           m_=1;
           do :: m_<k -> assert((k==v[l].flag && v[l].first) || OBJ(m_)!=o || !IN(m_,v[l].saw) || IN(m_,v[l].batch)
                                || ENDED(m_) || !ENTITLED(i)); m_++
              :: else -> break od;
           m_=0;
#endif
#ifdef B_TWOTX
           if :: k==v[l].flag -> effect(k); st[k]=DONE; CLEAR(k) :: else fi;
#elif defined(B_NOCOUNT)
           effect(k);
           if :: k==v[l].flag || FREE(k) -> st[k]=DONE; CLEAR(k) :: else fi;
#elif defined(B_NOHEAD)
           effect(k);
           if :: k!=v[l].flag || OWNED(k,t[i].id) -> st[k]=DONE; CLEAR(k) :: else fi;
#else
           effect(k); st[k]=DONE; CLEAR(k);
#endif
           printf("I%d commits M%d\n", i, k)
        :: else
        fi;
        k++
     :: else -> break
     od;
     k=0;
     if :: !t[i].stop -> nx=NEXTOF(l) :: else fi;
     if :: nx && !(NEXTOK(nx) && G_GUARD(o)) -> nx=0 :: else fi;
#ifdef B_TWOTX
     if :: !SINGLE(l) -> nx=0 :: else fi;
#endif
     if :: nx && !SINGLE(l) -> REACHED(2) :: else fi;
     if :: nx -> x=v[l].flag; m_=v[l].lt; flag_next(nx, l, i); v[l].flag=x; v[l].lt=m_; x=0; m_=0 :: else fi
  :: v[l].res==R_FAILED ->
     m_=v[l].flag; st[m_]=FAILED; tries[m_]++; CLEAR(m_); printf("I%d settles M%d: failed\n", i, m_);
#ifdef C_DIES
     fails[m_]++;
#endif
#if defined(C_GUILTY) && defined(NOFAIL)
     assert(IN(m_,FAILING));
#endif
     if :: tries[m_]<MAXT -> LATERON(m_) :: else fi;
     m_=0
  :: v[l].res==R_RELEASED -> m_=v[l].flag; give_back(m_); printf("I%d gives M%d back\n", i, m_); m_=0
  fi }
inline flag_next(m, l, i) {
  st[m]=PROCESSING; by[m]=t[i].id; due[m]=true;
#ifdef C_FENCE
  epoch[m]=(epoch[m]+1)%8;
#endif
  assert(COUNT(RUNS_OF,OBJ(m))<=1) }
inline went_on(l, i) {          /* the answer of a settle: the flag is at nx, or the lane is over */
  if
  :: nx -> printf("I%d flag moves to M%d\n", i, nx); v[l].behind=v[l].behind & (ALLBITS-v[l].batch-bit(nx));
     v[l].flag=nx; v[l].batch=0; v[l].res=0; v[l].unknown=0; v[l].lt=tries[nx]; v[l].first=false;
#ifdef C_FENCE
     v[l].epoch=epoch[nx];
#endif
     skip
  :: else ->
#ifdef B_TWOTX
     if
     :: v[l].res==R_DONE && !SINGLE(l) ->
        v[l].batch=v[l].batch & (ALLBITS-bit(v[l].flag)); v[l].pc=HALF; v[l].res=0
     :: else -> lane_ends(l)
     fi
#else
     lane_ends(l)
#endif
  fi; nx=0 }

proctype LaneOf(byte i; byte o) {
end:
  do
  /* ---- the claim ---- */
  :: d_step { v[L(i,o)].pc==IDLE && !t[i].stop && READY(HEAD(o)) && !RUNNING(o) && NO_GHOST(i,o) ->
       nx=HEAD(o); v[L(i,o)].cand=nx; v[L(i,o)].seen=st[nx]; v[L(i,o)].seent=tries[nx]; v[L(i,o)].pc=LOOKED; nx=0;
#ifdef B_RUNEARLY               /* the run is read with the candidate */
       read_run(L(i,o), o)
#endif
     }
  :: atomic { v[L(i,o)].pc==LOOKED && !FLYING(o) ->
       if
       :: G_GUARD(o) && st[v[L(i,o)].cand]==v[L(i,o)].seen && tries[v[L(i,o)].cand]==v[L(i,o)].seent ->
          d_step {
            flagit(v[L(i,o)].cand, L(i,o), i); v[L(i,o)].seen=0; v[L(i,o)].seent=0; v[L(i,o)].pc=FLAGGED;
            v[L(i,o)].first=true;
#if !defined(CRASHONLY) && !defined(MARK) && !defined(B_CRASHSHARE)
            if :: !MAYLEAD(v[L(i,o)].cand) -> v[L(i,o)].solo=true :: else fi;
#endif
            printf("I%d claims M%d\n", i, v[L(i,o)].cand) }
          if
#if UNKNOWN > 0
          :: d_step { unknowns<UNKNOWN -> unknowns++; printf("I%d does not know of it\n", i); forget(L(i,o)) }
#endif
          :: true
          fi
       :: else -> d_step { forget(L(i,o)) }
       fi }
  :: d_step { v[L(i,o)].pc==FLAGGED ->
#ifndef B_RUNEARLY
       read_run(L(i,o), o);
#endif
       v[L(i,o)].pc=LANE; v[L(i,o)].cand=0 }
#ifdef SHORTRUNS                /* the reading of the run fails, or is cut short */
  :: d_step { v[L(i,o)].pc==FLAGGED -> v[L(i,o)].behind=0; v[L(i,o)].pc=LANE; v[L(i,o)].cand=0 }
#endif
  /* ---- the handlers ---- */
  :: atomic { v[L(i,o)].pc==LANE && !v[L(i,o)].batch && !v[L(i,o)].res && !v[L(i,o)].unknown && !t[i].stop ->
       choose(L(i,o)); d_step { start(L(i,o), i, o) } }
  :: d_step { v[L(i,o)].batch && !v[L(i,o)].res && !t[i].joint && POISONED(L(i,o)) -> poisoned(i) }
#ifdef B_TWOTX
#define RUNS_A_BATCH(l) (v[l].pc==LANE && v[l].batch && !v[l].res && !t[i].joint)
#else
#define RUNS_A_BATCH(l) (v[l].batch && !v[l].res && !t[i].joint)
#endif
  :: d_step { RUNS_A_BATCH(L(i,o)) && !POISONED(L(i,o)) && !FAILSALWAYS(L(i,o)) ->
       v[L(i,o)].res=R_DONE;
#ifdef B_OUTSIDE                /* what handlers write is not in the transaction */
       k=1; do :: k<=N -> if :: IN(k,v[L(i,o)].batch) -> effect(k) :: else fi; k++ :: else -> break od; k=0
#endif
     }
  :: d_step { RUNS_A_BATCH(L(i,o)) && MAYFAIL(L(i,o)) && SINGLE(L(i,o)) -> v[L(i,o)].res=R_FAILED }
#ifdef PREFIX
  :: atomic { RUNS_A_BATCH(L(i,o)) && MAYFAIL(L(i,o)) && !SINGLE(L(i,o)) ->
       x=LOWEST(v[L(i,o)].batch & (FAILING)); /* the first that raises: given, or any */
       if
       :: x
       :: !x && IN(1,v[L(i,o)].batch) -> x=1
       :: !x && IN(2,v[L(i,o)].batch) -> x=2
       :: !x && IN(NA,v[L(i,o)].batch) -> x=NA
       fi;
       d_step {
         printf("I%d: M%d raises in the batch\n", i, x);
         if
         :: x==v[L(i,o)].flag -> rolled_back(L(i,o))
         :: else -> v[L(i,o)].batch=v[L(i,o)].batch & (bit(x)-1); v[L(i,o)].res=R_DONE; v[L(i,o)].solo=true
         fi; x=0 } }
#elif defined(B_BLAMEHEAD)      /* an exception in the batch counts a try of its head */
  :: d_step { RUNS_A_BATCH(L(i,o)) && MAYFAIL(L(i,o)) && !SINGLE(L(i,o)) ->
       v[L(i,o)].batch=bit(v[L(i,o)].flag); v[L(i,o)].res=R_FAILED }
#else
  :: d_step { RUNS_A_BATCH(L(i,o)) && MAYFAIL(L(i,o)) && !SINGLE(L(i,o)) ->
       printf("I%d: the batch raises, rolled back\n", i); rolled_back(L(i,o)) }
#endif
  :: d_step { IN(o,t[i].ghost) && !FLYING(o) -> t[i].ghost=t[i].ghost & (ALLBITS-bit(o));     /* it ends, or fails */
       FORGET_GHOST(i,o) }
#if EXPIRIES > 0
#define GFOK(m,i) (!IN(m,t[i].gbatch) || m==t[i].gflag || FREE(m))
  :: d_step { o==1 && t[i].gflag && !FLYING(o) ->               /* it settles, under its old id */
       if
       :: OWNED(t[i].gflag, t[i].gid) && EVERY(GFOK,i) ->
          k=1;
          do :: k<=N -> if :: IN(k,t[i].gbatch) -> effect(k); st[k]=DONE; CLEAR(k);
                                printf("I%d (old) commits M%d\n", i, k)
                           :: else fi; k++
             :: else -> break od;
          k=0; REACHED(6)
       :: else -> REACHED(7); printf("I%d (old): M%d is no longer ours, rolled back\n", i, t[i].gflag)
       fi;
       t[i].ghost=t[i].ghost & (ALLBITS-bit(o)); FORGET_GHOST(i,o) }
#endif
  /* ---- settle: the transaction's last statements and its COMMIT ---- */
  :: atomic { v[L(i,o)].pc==LANE && v[L(i,o)].res && !v[L(i,o)].unknown && !t[i].joint && !FLYING(o) ->
       if
       :: !FENCE(L(i,o)) ->
          d_step { if :: !SINGLE(L(i,o)) -> REACHED(3) :: else fi;
            printf("I%d: M%d is no longer ours, rolled back\n", i, v[L(i,o)].flag); lane_ends(L(i,o)) }
       :: FENCE(L(i,o)) && v[L(i,o)].res==R_DONE && !ALLOK(L(i,o)) ->
          d_step { REACHED(4); printf("I%d: a follower is gone, rolled back\n", i); rolled_back(L(i,o)) }
       :: else ->
          if
          :: d_step { settle(L(i,o), i, o); went_on(L(i,o), i) }
#if UNKNOWN > 0
          :: d_step { unknowns<UNKNOWN -> unknowns++; settle(L(i,o), i, o); nx=0; v[L(i,o)].unknown=true;
               printf("I%d does not know of it\n", i) }
          :: d_step { unknowns<UNKNOWN -> unknowns++; v[L(i,o)].unknown=true;
               printf("I%d: the commit is lost\n", i) }
#endif
#if PENDING > 0
          :: d_step { flown<PENDING && !flybatch && v[L(i,o)].res==R_DONE -> flown++; flybatch=v[L(i,o)].batch;
               flym=v[L(i,o)].flag; flyid=t[i].id; flynext=(t[i].stop -> 0 : NEXTOF(L(i,o)));
               if :: flynext && !NEXTOK(flynext) -> flynext=0 :: else fi;
               v[L(i,o)].unknown=true; printf("I%d: the commit of M%d is under way, answer lost\n", i, flym) }
#endif
          fi
       fi }
#ifdef B_TWOTX                  /* the followers in a transaction of their own */
  :: d_step { v[L(i,o)].pc==HALF ->
       k=1;
       do :: k<=N -> if :: IN(k,v[L(i,o)].batch) && FREE(k) -> effect(k); st[k]=DONE; printf("I%d commits M%d\n", i, k)
                        :: else fi; k++
          :: else -> break od;
       k=0; lane_ends(L(i,o)) }
#endif
#ifdef B_RESENDS                /* not looked at: the handlers start again */
  :: d_step { v[L(i,o)].pc==LANE && v[L(i,o)].unknown ->
       v[L(i,o)].unknown=false; if :: v[L(i,o)].res==R_DONE -> v[L(i,o)].batch=0; v[L(i,o)].res=0 :: else fi }
#elif defined(B_UNANSWERED)     /* not waited for: taken for not committed, and given up */
  :: d_step { v[L(i,o)].pc==LANE && v[L(i,o)].unknown -> lane_ends(L(i,o)) }
#elif defined(B_TAKENFORDONE)   /* not looked at: taken for committed, the followers go on */
  :: d_step { v[L(i,o)].pc==LANE && v[L(i,o)].unknown ->
       v[L(i,o)].unknown=false; nx=(v[L(i,o)].res==R_DONE -> NEXTOF(L(i,o)) : 0); went_on(L(i,o), i) }
#else
  :: d_step { v[L(i,o)].pc==LANE && v[L(i,o)].unknown && MAYLOOK(o) ->   /* SELECT ... FOR UPDATE, first of all */
       v[L(i,o)].unknown=false; nx=(v[L(i,o)].res==R_DONE -> NEXTOF(L(i,o)) : 0);
       if
       :: OWNED(v[L(i,o)].flag, t[i].id) ->                  /* not committed */
          nx=0; if :: v[L(i,o)].res==R_DONE -> v[L(i,o)].batch=0; v[L(i,o)].res=0 :: else fi
       :: !OWNED(v[L(i,o)].flag, t[i].id) && nx && OWNED(nx, t[i].id) -> went_on(L(i,o), i)
       :: else -> nx=0; lane_ends(L(i,o))
       fi }
#endif
  :: d_step { (v[L(i,o)].pc==IDLE || v[L(i,o)].pc==LOOKED) && KNOWN(L(i,o)) && !LOCKED(KNOWN(L(i,o))) ->
       nx=KNOWN(L(i,o)); give_back(nx); printf("I%d gives M%d back, not in hand\n", i, nx); nx=0 }
  /* ---- death and stop ---- */
#if KILLS > 0
  :: d_step { kills<KILLS && v[L(i,o)].pc!=IDLE -> kills++; killed(i) }
#endif
#if STOPS > 0
  :: d_step { stops<STOPS && !t[i].stop -> stops++; t[i].stop=true; printf("I%d is to stop\n", i) }
  :: d_step { t[i].stop && v[L(i,o)].pc==LANE && !v[L(i,o)].batch && !v[L(i,o)].res && !v[L(i,o)].unknown ->
       v[L(i,o)].res=R_RELEASED }
  :: d_step { t[i].stop && v[L(i,1)].pc==IDLE && v[L(i,O)].pc==IDLE && !t[i].ghost && HOLDS_NOTHING(i) ->
#ifdef C_STOP
       assert(lease[t[i].id]!=LIVE || !MINE(t[i].id));
#endif
       if :: lease[t[i].id]!=TAKEN -> lease[t[i].id]=NONE :: else fi;
       printf("I%d has stopped\n", i); reborn(i) }
#endif
  od }

#if defined(MULTI) || defined(GROUP)
#ifdef GROUP
#define JOINS(l) (!v[l].solo)
#else
#define JOINS(l) MAYBATCH(l)
#endif
#define READYFOR(l) (v[l].pc==LANE && !v[l].batch && !v[l].res && !v[l].unknown && JOINS(l))
inline fate(l, i) {             /* after a rollback: who is lost is dropped, who is not runs alone */
  if :: FENCE(l) -> rolled_back(l)
     :: else -> printf("I%d: M%d is no longer ours\n", i, v[l].flag); lane_ends(l) fi }
inline answered(l, i) {         /* what is flagged now, when the answer of both came */
  nx=NEXTOF(l); if :: nx && OWNED(nx, t[i].id) -> skip :: else -> nx=0 fi; went_on(l, i) }
proctype Joint(byte i) {        /* one transaction over both lanes of an instance */
end:
  do
  :: atomic { READYFOR(L(i,1)) && READYFOR(L(i,2)) && !t[i].stop ->
       t[i].joint=true; choose(L(i,1)); choose(L(i,2));
       d_step { printf("I%d: both in one transaction\n", i); start(L(i,1), i, 1); start(L(i,2), i, 2) } }
  :: d_step { t[i].joint && !v[L(i,1)].res && (POISONED(L(i,1)) || POISONED(L(i,2))) -> poisoned(i) }
  :: d_step { t[i].joint && !v[L(i,1)].res && !POISONED(L(i,1)) && !POISONED(L(i,2)) && !FAILSALWAYS(L(i,1)) &&
              !FAILSALWAYS(L(i,2)) -> v[L(i,1)].res=R_DONE; v[L(i,2)].res=R_DONE }
  :: d_step { t[i].joint && !v[L(i,1)].res && !POISONED(L(i,1)) && !POISONED(L(i,2)) &&
              (MAYFAIL(L(i,1)) || MAYFAIL(L(i,2))) ->
       printf("I%d: the batch raises, rolled back\n", i);
       t[i].joint=false; rolled_back(L(i,1)); rolled_back(L(i,2)) }
  :: atomic { t[i].joint && v[L(i,1)].res ->
       if
#ifdef B_HALFJOINT              /* the lanes that are still ours are committed, the others are not looked at */
       :: (FENCE(L(i,1)) && ALLOK(L(i,1))) != (FENCE(L(i,2)) && ALLOK(L(i,2))) ->
          d_step { k=1; do :: k<=N -> if :: IN(k,v[L(i,1)].batch) || IN(k,v[L(i,2)].batch) -> effect(k) :: else fi; k++
                           :: else -> break od; k=0;
            t[i].joint=false;
            if :: FENCE(L(i,1)) && ALLOK(L(i,1)) -> settle(L(i,1), i, 1); went_on(L(i,1), i); lane_ends(L(i,2))
               :: else -> settle(L(i,2), i, 2); went_on(L(i,2), i); lane_ends(L(i,1)) fi }
#endif
       :: FENCE(L(i,1)) && FENCE(L(i,2)) && ALLOK(L(i,1)) && ALLOK(L(i,2)) ->
          if
          :: d_step { if :: v[L(i,1)].batch==6 -> REACHED(5) :: else fi;
               t[i].joint=false; settle(L(i,1), i, 1); settle(L(i,2), i, 2);
               answered(L(i,1), i); answered(L(i,2), i) }
#if UNKNOWN > 0
          :: d_step { unknowns<UNKNOWN -> unknowns++; t[i].joint=false; settle(L(i,1), i, 1); settle(L(i,2), i, 2);
               nx=0; v[L(i,1)].unknown=true; v[L(i,2)].unknown=true; printf("I%d does not know of it\n", i) }
          :: d_step { unknowns<UNKNOWN -> unknowns++; t[i].joint=false;
               v[L(i,1)].unknown=true; v[L(i,2)].unknown=true; printf("I%d: the commit is lost\n", i) }
#endif
          fi
       :: else ->
          d_step { t[i].joint=false; printf("I%d: counts are wrong, rolled back\n", i);
            fate(L(i,1), i); fate(L(i,2), i) }
       fi }
  od }
#endif

#if EXPIRIES > 0
inline haunts(l, i, o) {
  if
  :: ACTIVE(l) -> t[i].ghost=t[i].ghost|bit(o);
     if :: o==1 && !t[i].joint -> t[i].gflag=v[l].flag; t[i].gbatch=v[l].batch; t[i].gid=t[i].id :: else fi
  :: else
  fi }
proctype Heartbeat(byte i) {    /* renewal: 0 rows, so a new id; the old handlers may still run */
end:
  do
#ifdef B_RENEWS_EXPIRED         /* renewal does not ask whether it has expired */
  :: d_step { lease[t[i].id]==EXPIRED -> lease[t[i].id]=LIVE }
#endif
#ifdef B_RENEWS_TAKEN           /* ... or was taken over */
  :: d_step { lease[t[i].id]==TAKEN -> lease[t[i].id]=LIVE }
#endif
  :: d_step { lease[t[i].id]!=LIVE -> printf("I%d has lost its lease\n", i); haunts(L(i,1), i, 1);
#if O == 2
       haunts(L(i,2), i, 2);
#endif
       reborn(i) }
  od }
#endif

inline recovered(m) {
  st[m]=FAILED; tries[m]=tries[m]+CRASHTRY; crashes[m]++; due[m]=true; CLEAR(m);
  printf("M%d is recovered\n", m);
#ifdef MARK
  k=m+1; x=1;
  do :: k<=N -> if :: OBJ(k)==OBJ(m) && vis[k] && st[k]==NEW && x<BMAX -> x++;
                   if :: !crashes[k] -> crashes[k]=1 :: else fi
                   :: else fi; k++
     :: else -> break od;
  k=0; x=0;
#endif
#ifdef BLAME
  assert(IN(m,POISON) || tries[m]<=BLAME);
#endif
#ifdef C_DIES                   /* who has not failed max_tries - 1 times on its own does not die for others */
  assert(IN(m,POISON) || !DEAD(m) || (MAXT>1 && fails[m]>=MAXT-1));
#endif
  skip }
#define ORPHAN(o) (RUNNING(o) && by[FIRST(RUNS_OF,o)] && lease[by[FIRST(RUNS_OF,o)]]==NONE && !LOCKED(FIRST(RUNS_OF,o)))
#define MAYBEGIN(l) (rpc==0 && (lease[l]==EXPIRED || lease[l]==TAKEN))
proctype Recovery() {
end:
  do
  :: d_step { MAYBEGIN(1) -> rx=1; rpc=1 }
  :: d_step { MAYBEGIN(2) -> rx=2; rpc=1 }
  :: d_step { MAYBEGIN(3) -> rx=3; rpc=1 }
  :: d_step { MAYBEGIN(4) -> rx=4; rpc=1 }
  :: d_step { MAYBEGIN(5) -> rx=5; rpc=1 }
  :: d_step { MAYBEGIN(6) -> rx=6; rpc=1 }
  :: d_step { MAYBEGIN(7) -> rx=7; rpc=1 }
  :: d_step { rpc==1 ->
       if
       :: lease[rx]==EXPIRED || lease[rx]==TAKEN ->
#ifndef B_NOTAKEOVER
          lease[rx]=TAKEN; printf("R1 takes over lease %d\n", rx);
#endif
          rpc=2
       :: else -> rx=0; rpc=0
       fi }
  :: d_step { rpc==2 -> rrow=MINE(rx); if :: rrow && !LOCKED(rrow) -> rpc=3 :: else -> rrow=0; rpc=4 fi }
  :: d_step { rpc==3 && !LOCKED(rrow) -> if :: DEADS -> recovered(rrow) :: else fi; rrow=0; rpc=2 }
  :: d_step { rpc==4 -> if :: DROPS(rx) && !MINE(rx) -> lease[rx]=NONE :: else fi; rx=0; rpc=0 }
  /* rows of ids without a lease */
  :: d_step { rpc==0 && (ORPHAN(1) || ORPHAN(2)) ->
       nx=(ORPHAN(1) -> FIRST(RUNS_OF,1) : FIRST(RUNS_OF,2)); rx=by[nx]; nx=0; rpc=5 }
  :: d_step { rpc==5 -> if :: lease[rx]==NONE -> rpc=6 :: else -> rx=0; rpc=0 fi }
  :: d_step { rpc==6 -> rrow=MINE(rx); rpc=7 }
  :: d_step { rpc==7 ->
#ifdef B_RECOVERS_ANY
       rrow=(rrow -> rrow : (RUNNING(1) -> FIRST(RUNS_OF,1) : 0));
#endif
       rpc=8 }
  :: d_step { rpc==8 && !LOCKED(rrow) -> if :: DEADS -> recovered(rrow) :: else fi; rrow=0; rx=0; rpc=0 }
  od }

#define UNHELD(l) (lease[l]==LIVE && !INUSE(l))
proctype Time() {
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
#define BUSY(i) (v[L(i,1)].pc!=IDLE || v[L(i,O)].pc!=IDLE)
  :: d_step { expiries<EXPIRIES && BUSY(1) && lease[t[1].id]==LIVE ->
       expiries++; lease[t[1].id]=EXPIRED; printf("I1 stands still, its lease expires\n") }
#if W == 2
  :: d_step { expiries<EXPIRIES && BUSY(2) && lease[t[2].id]==LIVE ->
       expiries++; lease[t[2].id]=EXPIRED; printf("I2 stands still, its lease expires\n") }
#endif
#endif
  od }

#if defined(BACKOFF) || defined(NOTYET)
proctype Instants() {
end:
  do :: d_step { !due[1] -> due[1]=true }
     :: d_step { !due[2] -> due[2]=true }
     :: d_step { !due[N] -> due[N]=true }
  od }
#endif

#if PENDING > 0
proctype Network() {            /* the server executes, or rolls back, what its client has given up */
end:
  do
  :: d_step { flybatch ->
       if :: flybatch!=bit(flym) -> REACHED(8) :: else fi;
       assert(OWNED(flym, flyid));
       k=1; do :: k<=N -> if :: IN(k,flybatch) -> effect(k); st[k]=DONE; CLEAR(k);
                                printf("a pending commit of M%d\n", k)
                             :: else fi; k++ :: else -> break od; k=0;
       if :: flynext && G_GUARD(OBJ(flynext)) -> st[flynext]=PROCESSING; by[flynext]=flyid;
#ifdef C_FENCE
             epoch[flynext]=(epoch[flynext]+1)%8;
#endif
             printf("... the flag moves to M%d\n", flynext)
          :: else fi;
       flybatch=0; flym=0; flynext=0; flyid=0 }
  :: d_step { flybatch -> printf("a pending commit of M%d is rolled back\n", flym);
       flybatch=0; flym=0; flynext=0; flyid=0 }
  od }
#endif

#ifdef LATE
proctype Producer() { d_step { vis[LATE]=true; printf("M%d is committed\n", LATE) } }
#endif

inline rerun(m) {
  st[m]=NEW; tries[m]=0; crashes[m]=0; due[m]=true; CLEAR(m); reruns++; gaveup=gaveup & (ALLBITS-bit(m));
  printf("ops rerun M%d\n", m);
#ifdef C_SAW                    /* a rerun is a new message: it was not there when the run was read */
  m_=1; do :: m_<=W*O -> v[m_].saw=v[m_].saw & (ALLBITS-bit(m)); m_++ :: else -> break od; m_=0;
#endif
#ifdef STARTS
  starts[m]=0;
#endif
#ifdef HEADS
  heads[m]=0;
#endif
#ifdef ALONE
  alone[m]=0;
#endif
#ifdef C_DIES
  fails[m]=0;
#endif
#ifdef C_ONCE
  effects[m]=0;
#endif
  skip }
#ifdef FORCED
#define RERUN_OK(m) (reruns<RERUNS && !LOCKED(m) && (DEAD(m) || (vis[m] && st[m]==DONE)))
#else
#define RERUN_OK(m) (reruns<RERUNS && !LOCKED(m) && DEAD(m))
#endif
#define DISCARD_OK(m) (!discarded && vis[m] && CLAIMABLE(m) && !LOCKED(m))
inline discard(m) {
  discarded=true; st[m]=FAILED; tries[m]=GONE; gaveup=gaveup|bit(m); printf("ops discard M%d\n", m) }
#if defined(RERUN) || defined(FORCED) || defined(DISCARD)
proctype Ops() {
end:
  do
#if defined(RERUN) || defined(FORCED)
  :: d_step { RERUN_OK(1) -> rerun(1) }
  :: d_step { RERUN_OK(2) -> rerun(2) }
  :: d_step { RERUN_OK(NA) -> rerun(NA) }
#endif
#ifdef DISCARD
  :: d_step { DISCARD_OK(1) -> discard(1) }
  :: d_step { DISCARD_OK(2) -> discard(2) }
  :: d_step { DISCARD_OK(NA) -> discard(NA) }
#endif
  :: false
  od }
#endif

#ifdef FOREIGN
/* The plain consumer: SELECT status 0 and no earlier one of the object running; any of those rows (it looks
 * further when it lost); then UPDATE ... status=1 WHERE status=0 AND msgID=?. Never dies, knows status only. */
#define EARLIER(m) (((m)>1 && RUNS_OF(1,1)) || ((m)>2 && RUNS_OF(2,1)) || ((m)>3 && NA>3 && RUNS_OF(3,1)))
#define SELECTED(m) (fpc==0 && vis[m] && st[m]==NEW && !EARLIER(m))
proctype Foreign() {
end:
  do
  :: d_step { SELECTED(1) -> fcand=1; fpc=1 }
  :: d_step { SELECTED(2) -> fcand=2; fpc=1 }
  :: d_step { NA>2 && SELECTED(NA) -> fcand=NA; fpc=1 }
  :: d_step { fpc==1 && !FLYING(1) ->
       if
       :: st[fcand]==NEW && G_GUARD(1) ->
          st[fcand]=PROCESSING; fcur=fcand; fpc=2; printf("F claims M%d\n", fcand);
          assert(COUNT(RUNS_OF,1)<=1);
#ifdef C_FENCE
          epoch[fcand]=(epoch[fcand]+1)%8; claimed_from(fcand, 0);
#endif
#ifdef C_ALONE
          k=1; do :: k<=W*O -> assert(OF(k)!=1 || !ENTITLED(WHO(k)) || !ACTIVE(k)); k++ :: else -> break od; k=0;
#endif
          fcand=0
       :: else -> fcand=0; fpc=0
       fi }
  :: d_step { fpc==2 -> effect(fcur); st[fcur]=DONE; printf("F ends M%d\n", fcur); fcur=0; fpc=0 }
#ifndef NOFAIL
  :: d_step { fpc==2 -> st[fcur]=FAILED; tries[fcur]++; printf("F fails M%d\n", fcur);
#ifdef C_DIES
       fails[fcur]++;
#endif
       fcur=0; fpc=0 }
#endif
  od }
#endif

init {
  atomic {
    k=1; do :: k<=N -> vis[k]=true; due[k]=true; k++ :: else -> break od;
    k=1; do :: k<=W -> t[k].id=k; lease[k]=LIVE; k++ :: else -> break od;
#ifdef NOTYET
    due[NOTYET]=false;
#endif
#ifdef LATE
    vis[LATE]=false; run Producer();
#endif
#if defined(RERUN) || defined(FORCED) || defined(DISCARD)
    run Ops();
#endif
#if defined(BACKOFF) || defined(NOTYET)
    run Instants();
#endif
#if PENDING > 0
    run Network();
#endif
#ifdef FOREIGN
    run Foreign();
#endif
#if KILLS > 0 || EXPIRIES > 0 || STOPS > 0 || POISON > 0 || defined(B_KEEPS)
    run Time(); run Recovery();
#endif
    k=1;
    do :: k<=W -> run LaneOf(k, 1);
#if O == 2
       run LaneOf(k, 2);
#endif
#if defined(MULTI) || defined(GROUP)
       run Joint(k);
#endif
#if EXPIRIES > 0
       run Heartbeat(k);
#endif
       k++ :: else -> break od;
    k=0
  } }

#ifdef LIVENESS
#define ENDS(m,a) ENDED(m)
ltl all_end { []<> (EVERY(ENDS,0)) }
#endif
