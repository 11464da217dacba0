/* Chains: one message whose handler sends another one, W instances that claim, run and settle it, kills, leases that
 * expire, connections that are lost at a COMMIT, and an operator who reruns what has ended.
 * A settle is a transaction: the UPDATE of the outcome where the flag is still ours, and the INSERT of what was sent; from
 * its first statement to its end the row is locked. A transaction whose connection is lost, with its process or alone, is
 * committed or rolled back by the server, at any later time. Who has lost only the connection looks at the row, behind
 * the lock, before it settles again; with TX, whose handler runs inside the transaction, the handler runs again.
 * ends, deads: how often the message was done, became dead (ghosts). sent, told: the messages sent with that.
 *
 * Checked after each COMMIT: sent==ends and told==deads: one for each end, none of a failed try.
 *   TX          the handler is transactional            RERUNS    an operator reruns what has ended
 *   B_APART     outcome and INSERT are two transactions
 *   B_UNFENCED  it is sent although the flag was not ours any more
 *   B_FAILED    a failed try sends
 *   B_AT_CALL   it is sent at the call, in a transaction of its own
 *   B_RESENDS   after a lost answer it is inserted again, without the outcome
 *   B_SILENT    a crash in the last try tells nobody
 * LIVENESS: the message ends.
 */
#ifndef W
#define W 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef EXPIRIES
#define EXPIRIES 1
#endif
#ifndef UNKNOWN
#define UNKNOWN 1
#endif
#ifndef RERUNS
#define RERUNS 0
#endif
#ifndef MAXT
#define MAXT 2
#endif
#define IDS 8
#define NEW 0
#define RUNS 1
#define DONE 2
#define DEAD 3
byte st; byte own; byte tries; byte lock;         /* the row; the instance whose transaction has locked it */
byte ends; byte deads; byte sent; byte told; byte busy;
byte id[W+1]; byte ids; bool gone[IDS];           /* no id is used again; gone: its lease is over */
byte kills; byte expiries; byte unknown; byte reruns;
bool hit[W+1]; bool failed[W+1]; bool ins[W+1];   /* its transaction: the row was ours; a failure; it inserts */
bool adrift[W+1];                                 /* its connection is lost */
#define OURS(i) (st==RUNS && own==id[i])
#if defined(B_UNFENCED)
#define SENDS(i) (!failed[i])
#elif defined(B_FAILED)
#define SENDS(i) (hit[i])
#elif defined(B_APART) || defined(B_AT_CALL)
#define SENDS(i) (false)
#else
#define SENDS(i) (hit[i] && !failed[i])
#endif
inline right() {
  if
  :: busy==0 -> assert(sent==ends); assert(told==deads)
  :: else
  fi }
inline buries() { st=DEAD; own=0; deads++; told++ }
inline closed(i) { lock=0; hit[i]=false; failed[i]=false; ins[i]=false; adrift[i]=false }
inline commits(i) {
  if
  :: hit[i] && !failed[i] -> st=DONE; own=0; ends++;
#ifdef B_APART
       busy++
#endif
  :: hit[i] && failed[i] && tries+1>=MAXT -> buries()
  :: hit[i] && failed[i] && tries+1<MAXT -> st=NEW; own=0; tries++
  :: else
  fi;
  if :: ins[i] -> sent++ :: else fi;
  closed(i); right() }
inline dies(i) {
  kills++; gone[id[i]]=true; ids++; id[i]=ids;
  if :: lock==i -> adrift[i]=true :: else fi }
proctype Instance(byte i) {
  bool fails, again, done;
top:
  again=false; done=false; fails=false;
end:
  do
  :: d_step { gone[id[i]] -> ids++; id[i]=ids }
  :: d_step { st==NEW && lock==0 && !gone[id[i]] -> st=RUNS; own=id[i]; printf("I%d claims\n", i) }
     break
  od;
handler:
#ifdef B_AT_CALL
  skip;
  d_step { sent++; printf("I%d sends\n", i) };
#endif
  if
  :: atomic { kills<KILLS -> d_step { dies(i); printf("I%d is killed\n", i) } } goto top
  :: fails=false
  :: fails=true
  fi;
settle:
  skip;
  d_step { lock==0 -> lock=i; hit[i]=OURS(i); failed[i]=fails; ins[i]=SENDS(i); printf("I%d settles, ours: %d, failed: %d\n", i, hit[i], fails) };
  if
  :: atomic { kills<KILLS -> d_step { dies(i); printf("I%d is killed in its transaction\n", i) } } goto top
  :: atomic { unknown<UNKNOWN && hit[i] -> unknown++; adrift[i]=true; printf("I%d gets no answer\n", i) } goto look
  :: d_step { !hit[i] && !ins[i] -> closed(i); printf("I%d has lost it\n", i) } goto top
  :: d_step { hit[i] || ins[i] -> done=hit[i] && !failed[i]; commits(i); printf("I%d commits\n", i) }
  fi;
#ifdef B_APART
  if
  :: done ->
     if
     :: d_step { kills<KILLS -> dies(i); busy--; printf("I%d is killed between the two\n", i); right() }
     :: d_step { sent++; busy--; right() }
     fi
  :: else
  fi;
#endif
  goto top;
look:
  skip;
  d_step { lock==0 -> again=OURS(i); printf("I%d looks: still ours: %d\n", i, again) };
#ifdef B_RESENDS
  if
  :: d_step { !again && !fails -> sent++; printf("I%d sends again\n", i); right() }
  :: else
  fi;
#endif
  if
  :: !again -> goto top
#ifdef TX
  :: again -> goto handler
#else
  :: again -> goto settle
#endif
  fi
}
proctype Server() {                               /* ends transactions whose connection is lost */
  byte k;
end:
  do
  :: atomic { lock!=0 && adrift[lock] -> k=lock;
       if
       :: d_step { commits(k); printf("S a COMMIT arrives late\n") }
       :: d_step { closed(k); printf("S rolls back\n") }
       fi;
       k=0 }
  od }
proctype Others() {                               /* leases that expire, recovery of what is without one, operators */
end:
  do
  :: d_step { expiries<EXPIRIES && st==RUNS && !gone[own] -> expiries++; gone[own]=true; printf("F a lease is over\n") }
  :: d_step { st==RUNS && gone[own] && lock==0 ->
       if
       :: tries+1>=MAXT -> buries();
#ifdef B_SILENT
            told--
#endif
       :: else -> st=NEW; own=0; tries++
       fi;
       printf("R recovers it\n"); right() }
  :: d_step { reruns<RERUNS && st>=DONE && lock==0 -> reruns++; st=NEW; tries=0; printf("ops rerun\n") }
  od }
init { atomic { byte k; ids=W; for (k : 1 .. W) { id[k]=k; run Instance(k) }; run Server(); run Others() } }
#ifdef LIVENESS
ltl over { <>[] (st>=DONE) }
#endif
