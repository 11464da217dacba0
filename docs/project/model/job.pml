/* A job: P producers send one message each and then seal it, W instances settle its messages and look
 * whether it is over; a handler of a message may send one more into it, with its outcome. Each
 * transaction is invisible until its COMMIT; it may roll back, and an instance may be killed (KILLS)
 * between any two steps.
 *
 * A producer locks the row of the job, shared, asks whether it is sealed, inserts, and commits; who
 * seals waits for those locks. A look finds the job sealed with nothing unfinished; then the row is
 * locked, both are asked again in a new statement, and `completed` and the report are written together.
 * Checked: the report is sent once; when the job completes no message of it is unfinished or comes to
 * be, but by a rerun; in the end it is sent (LIVENESS).
 *   RERUNS     messages that have ended may be tried again, so often
 *   B_NOLOCK   producers lock nothing        B_NOASK     who is sealed out is not asked for
 *   B_OPEN     it completes without a seal   B_ONCE      a settle looks within its own transaction, and nobody after it
 *   B_SEEN     what the look saw is not asked again      B_APART   the report is sent in another transaction
 *   B_LATE     what a handler sends is inserted after its outcome has committed
 */
#ifndef P
#define P 2
#endif
#ifndef W
#define W 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef RERUNS
#define RERUNS 0
#endif
#define N (P+1)                         /* messages: one of each producer, one of a handler */
#define NONE 0
#define HIDDEN 1                        /* inserted, not committed */
#define OPEN 2
#define TAKEN 3                         /* its handler runs or has run, its settle is not committed */
#define ENDED 4
byte m[N+1];
bool sealed; bool completed; bool locked;
byte shared; byte reports; byte kills; byte reruns; bool again;
#define UNFINISHED(k) (m[k]==OPEN || m[k]==TAKEN)
#define ANY (UNFINISHED(1) || UNFINISHED(2) || UNFINISHED(N))
#define HIDES (m[1]==HIDDEN || m[2]==HIDDEN || m[N]==HIDDEN)
inline complete() { completed=true; assert(again || !(ANY || HIDES)) }
inline report() { reports++; assert(reports==1) }

proctype Producer(byte i) {
  bool out;
#ifdef B_NOLOCK
#ifdef B_NOASK
  skip;
#else
  atomic { out=sealed }
#endif
#else
  atomic { !locked -> shared++;
#ifdef B_NOASK
    out=false
#else
    out=sealed
#endif
  }
#endif
  ;
  if
  :: out -> skip                        /* an error: nothing is sent */
  :: else -> m[i]=HIDDEN;
     if
     :: m[i]=OPEN; assert(!completed || again)
     :: m[i]=NONE                       /* rolled back */
     fi
  fi;
#ifndef B_NOLOCK
  shared--
#else
  skip
#endif
}

proctype Sealer() {                     /* at any time */
  atomic { shared==0 && !locked -> sealed=true }
}

inline settle(k) {
  /* the handler of message 1 sends message N, unless it did so before */
  if
  :: atomic { true ->
#ifdef B_LATE
       m[k]=ENDED }; atomic { if :: k==1 && m[N]==NONE -> m[N]=OPEN; assert(!completed || again) :: else fi }
#else
       if :: k==1 && m[N]==NONE -> m[N]=OPEN; assert(!completed || again) :: else fi;
#ifdef B_ONCE
       sees=!(m[1]==OPEN || m[2]==OPEN || m[N]==OPEN || (k!=1 && m[1]==TAKEN) || (k!=2 && m[2]==TAKEN) || (k!=N && m[N]==TAKEN));
#endif
       m[k]=ENDED }
#endif
  :: atomic { kills<KILLS -> kills++; m[k]=OPEN }         /* killed, and recovered */
  fi }

proctype Instance() {
  bool sees;
end:
  do
  :: atomic { m[1]==OPEN -> m[1]=TAKEN }; settle(1)
  :: atomic { m[2]==OPEN -> m[2]=TAKEN }; settle(2)
  :: atomic { m[N]==OPEN -> m[N]=TAKEN }; settle(N)
#ifdef B_OPEN
#define TO_COMPLETE (!completed)
#else
#define TO_COMPLETE (sealed && !completed)
#endif
#ifdef B_ONCE
  :: atomic { sees && TO_COMPLETE && shared==0 && !locked -> sees=false; complete(); report() }
  :: atomic { sees && !TO_COMPLETE -> sees=false }
#else
  /* the look; then, under the lock of the row, the same in a new statement */
  :: atomic { !sees && TO_COMPLETE && !ANY -> sees=true }
  :: atomic { sees && (completed || ANY) -> sees=false }
  :: atomic { sees && !completed && shared==0 && !locked -> locked=true; sees=false };
#ifdef B_SEEN
     atomic { if :: true -> complete(); report() fi; locked=false }
#elif defined(B_APART)
     atomic { if :: TO_COMPLETE && !ANY -> report() :: else fi };
     if
     :: atomic { if :: TO_COMPLETE && !ANY -> complete() :: else fi; locked=false }
     :: atomic { kills<KILLS -> kills++; locked=false }   /* killed: the row is unlocked */
     fi
#else
     if
     :: atomic { if :: TO_COMPLETE && !ANY -> complete(); report() :: else fi; locked=false }
     :: atomic { kills<KILLS -> kills++; locked=false }   /* killed: rolled back */
     fi
#endif
#endif
  od
}

proctype Operator() {
end:
  do
  :: atomic { reruns<RERUNS && m[1]==ENDED -> reruns++; again=again||completed; m[1]=OPEN }
  od
}

init {
  atomic {
    byte i=1;
    do :: i<=P -> run Producer(i); i++ :: else -> break od;
    i=0;
    do :: i<W -> run Instance(); i++ :: else -> break od;
    run Sealer(); run Operator() }
}
#ifdef LIVENESS
ltl sent { <> (reports==1) }
#endif
