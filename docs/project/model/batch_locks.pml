/* The last statements of a transactional batch under row locks, as PostgreSQL READ COMMITTED
 * has them: an UPDATE waits for the row, looks again, then its new index entry waits for whoever has an unfinished
 * change of the guard's key; a row that is only locked counts as it is. A deadlock is an invalid end state. SKIP LOCKED
 * is an else. First of all the batch locks its rows and the next one (SELECT ... FOR UPDATE), in the order of msg_id.
 *
 * M1 (head, at 1, ours), M2 (follower), M3 (next) of object A; M4 (head, at 1, ours) of B; 5 and 6 are business rows.
 *   FOREIGN=m   the plain consumer wants Mm        CLAIM  another instance wants M2     OPS  people discard M2 and M3
 *   RECOVERY    M1 is recovered and claimed again while its batch is open
 *   JOINT       the batch covers B's head too, and a zombie has the same batch
 *   PENDING     a COMMIT is under way, its client has given up on it and looks
 *   BUSINESS    two batches whose handlers write rows 5 and 6 in different order; SINGLES: message by message
 *   B_UNLOCKED  not locked first                         B_LANEWISE     locked lane by lane: the second has B first
 *   B_OPSORDER  people lock 3 before 2                   B_HEADEARLY    the head is put to 2 and committed first
 *   B_NOSTATUS  the follower's UPDATE asks for no status
 *   B_LOOKPLAIN the look takes what is committed (else it locks the row, and waits)
 */
#define ROWS 6
byte cs[ROWS+1];                /* committed: 0, 1, 2, 3 = dead */
byte lk[ROWS+1]; byte ns[ROWS+1]; byte owner[ROWS+1];   /* locked by; its new status; claimed_by */
bool ix[ROWS+1];                /* its new entry stands in the guard's index */
bool inbatch[ROWS+1];           /* an entitled batch is at work on it, not committed */
bool taken[ROWS+1];             /* a foreign consumer has committed its claim */
byte effects[ROWS+1]; bool gave[ROWS+1];
byte zk;
#define OBJ(m) ((m)<=3 -> 1 : ((m)==4 -> 2 : 0))
#define FREE(m,T) (lk[m]==0 || lk[m]==T)
#define CUR(m,T) (lk[m]==T -> ns[m] : cs[m])
#define PENDS(k,m,T) ((k)!=(m) && lk[k] && lk[k]!=T && ns[k]!=cs[k] && (cs[k]==1 || ix[k]))
#define STANDS(k,m,T) ((k)!=(m) && CUR(k,T)==1)
#define WAITS(m,T) (OBJ(m)==1 && (PENDS(1,m,T) || PENDS(2,m,T) || PENDS(3,m,T)))
#define REFUSED(m,T) (OBJ(m)==1 && (STANDS(1,m,T) || STANDS(2,m,T) || STANDS(3,m,T)))
inline lock(m,T) { d_step { FREE(m,T) -> if :: lk[m]==0 -> lk[m]=T; ns[m]=cs[m] :: else fi } }
inline set(m,T,s) { if :: lk[m]==0 -> lk[m]=T :: else fi; ns[m]=s }
inline commit(T) {
  d_step { zk=1; do :: zk<=ROWS -> if :: lk[zk]==T -> cs[zk]=ns[zk]; lk[zk]=0; ns[zk]=0; ix[zk]=false :: else fi; zk++
                            :: else -> break od;
    zk=0; assert((cs[1]==1)+(cs[2]==1)+(cs[3]==1)<=1) } }
inline rollback(T) {
  d_step { zk=1; do :: zk<=ROWS -> if :: lk[zk]==T -> lk[zk]=0; ns[zk]=0; ix[zk]=false :: else fi; zk++
                            :: else -> break od; zk=0 } }

#define ME 1
#ifdef JOINT
#define WITHB true
#else
#define WITHB false
#endif
proctype Batch() {              /* I1: M1, M2 in one transaction; the flag goes to M3 */
  byte n; bool solo;
again:
  n=0;
#ifdef B_HEADEARLY
  d_step { FREE(1,ME) && cs[1]==1 && owner[1]==ME -> set(1,ME,2) }; commit(ME);
  n=1;
#endif
#ifndef B_UNLOCKED
  lock(1,ME); if :: !solo -> lock(2,ME); lock(3,ME); if :: WITHB -> lock(4,ME) :: else fi :: else fi;
#endif
#ifndef B_HEADEARLY
  d_step { FREE(1,ME) -> if :: CUR(1,ME)==1 && owner[1]==ME -> set(1,ME,2); n++ :: else fi };
#endif
  if
  :: n==0 -> goto lost
  :: else
  fi;
  if
  :: solo -> commit(ME); atomic { effects[1]++; inbatch[1]=false; goto ended }
  :: else
  fi;
#ifdef B_NOSTATUS
  d_step { FREE(2,ME) -> set(2,ME,2); n++ };
#else
  d_step { FREE(2,ME) -> if :: CUR(2,ME)==0 -> set(2,ME,2); n++ :: else fi };
#endif
  if
  :: n==1 -> rollback(ME); d_step { solo=true; inbatch[2]=false; inbatch[4]=false }; goto again     /* head alone */
  :: else
  fi;
  if
  :: WITHB -> d_step { FREE(4,ME) -> if :: CUR(4,ME)==1 && owner[4]==ME -> set(4,ME,2); n++ :: else fi };
     if :: n==2 -> rollback(ME); d_step { solo=true; inbatch[2]=false; inbatch[4]=false }; goto again
        :: else fi
  :: else
  fi;
  d_step { FREE(3,ME) -> if :: CUR(3,ME)==0 -> set(3,ME,1) :: else fi };
  d_step { !WAITS(3,ME) -> if :: lk[3]==ME && ns[3]==1 -> assert(!REFUSED(3,ME)); ix[3]=true :: else fi };
  atomic { if :: lk[3]==ME && ns[3]==1 -> owner[3]=ME :: else fi; commit(ME);
    effects[1]++; effects[2]++; inbatch[1]=false; inbatch[2]=false; inbatch[4]=false;
    assert(effects[1]<=1 && effects[2]<=1); assert(!gave[2]); assert(!taken[2]) };
  goto ended;
lost:
  rollback(ME); d_step { inbatch[1]=false; inbatch[2]=false; inbatch[4]=false };
ended: skip }

proctype Foreign(byte m) {      /* UPDATE ... SET status = 1 WHERE status = 0 AND msgID = m, by itself */
  atomic { FREE(m,2) -> if :: CUR(m,2)==0 -> set(m,2,1) :: else -> goto over fi };
  atomic { !WAITS(m,2) -> if :: REFUSED(m,2) -> goto refused :: else -> ix[m]=true fi };
  atomic { commit(2); taken[m]=true; printf("F has M%d\n", m); assert(!inbatch[m]); assert(!inbatch[1] || OBJ(m)!=1) };
  d_step { FREE(m,2) -> if :: CUR(m,2)==1 -> set(m,2,2) :: else fi }; commit(2);
  taken[m]=false; goto over;
refused: rollback(2);
over: skip }

inline dead(m) { d_step { FREE(m,3) -> if :: CUR(m,3)==0 || CUR(m,3)==3 -> set(m,3,3) :: else fi } }
proctype Ops() {                /* discards M2 and M3: locks, then changes, in one transaction */
#ifdef B_OPSORDER
  dead(3); dead(2);
#else
  dead(2); dead(3);
#endif
  d_step { if :: lk[2]==3 -> gave[2]=true :: else fi; if :: lk[3]==3 -> gave[3]=true :: else fi };
  commit(3) }

proctype Claim() {              /* another instance, whose candidate M2 is out of date */
  atomic { FREE(2,4) -> if :: CUR(2,4)==0 -> set(2,4,1) :: else -> goto over fi };
  atomic { !WAITS(2,4) -> if :: REFUSED(2,4) -> goto refused :: else -> ix[2]=true fi };
  atomic { commit(4); owner[2]=4; assert(!inbatch[2]) };
  goto over;
refused: rollback(4);
over: skip }

#ifdef JOINT
#define ZO 5
proctype Zombie() {             /* was recovered long ago: believes that M1 and M4 are still its own */
#ifdef B_LANEWISE
  lock(4,ZO); lock(1,ZO); lock(2,ZO); lock(3,ZO);
#elif !defined(B_UNLOCKED)
  lock(1,ZO); lock(2,ZO); lock(3,ZO); lock(4,ZO);
#endif
  d_step { FREE(1,ZO) -> if :: CUR(1,ZO)==1 && owner[1]==ZO -> set(1,ZO,2); assert(false) :: else fi };
  rollback(ZO) }
#endif

#ifdef RECOVERY                 /* I1 is a zombie: M1 is taken from it while its batch is open, and claimed again */
proctype Recovery() {
  atomic { if :: lk[1]==0 && cs[1]==1 && owner[1]==ME -> cs[1]=3; owner[1]=0; inbatch[1]=false; inbatch[2]=false
              :: else -> goto over fi };                   /* SKIP LOCKED */
  atomic { FREE(1,6) -> if :: CUR(1,6)==3 -> set(1,6,1) :: else -> goto over fi };
  atomic { !WAITS(1,6) -> if :: REFUSED(1,6) -> goto refused :: else -> ix[1]=true fi };
  atomic { commit(6); owner[1]=6 };
  lock(1,6); lock(2,6);         /* and its new owner's batch */
  atomic { if :: CUR(1,6)==1 && CUR(2,6)==0 -> set(1,6,2); set(2,6,2) :: else -> goto refused fi };
  atomic { commit(6); effects[1]++; effects[2]++; assert(effects[1]<=1 && effects[2]<=1) };
  goto over;
refused: rollback(6);
over: skip }
#endif

#ifdef BUSINESS                 /* handlers of batch T write b then c */
proctype Pair(byte T; byte b; byte c) {
  lock(b,T);
#ifdef SINGLES
  commit(T);
#endif
  lock(c,T); commit(T) }
#endif

#ifdef PENDING                 /* the COMMIT of M1, M2 is under way, its client has given up on it and looks */
bool sent;
proctype Server() {
  d_step { set(1,ME,2); set(2,ME,2); set(3,ME,1); sent=true };
  if :: commit(ME) :: rollback(ME) fi }
proctype Looks() {
  sent;
#ifndef B_LOOKPLAIN
  FREE(1,2);                    /* SELECT ... FOR UPDATE of the head */
#endif
  if
  :: cs[1]==1 && owner[1]==ME -> assert(!lk[1])     /* the handlers start again: nothing of it may come */
  :: else
  fi }
#endif

init {
  atomic {
    cs[1]=1; owner[1]=ME; cs[4]=1; owner[4]=ME;
#if defined(BUSINESS)
    run Pair(1,5,6); run Pair(2,6,5);
#elif defined(PENDING)
    run Server(); run Looks();
#else
    inbatch[1]=true; inbatch[2]=true; inbatch[4]=WITHB; run Batch();
#ifdef FOREIGN
    run Foreign(FOREIGN);
#endif
#ifdef OPS
    run Ops();
#endif
#ifdef CLAIM
    run Claim();
#endif
#ifdef JOINT
    run Zombie();
#endif
#ifdef RECOVERY
    run Recovery();
#endif
#endif
  } }
