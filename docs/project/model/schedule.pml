/* Ticks of a schedule: W instances look at its row and fire it, each in one transaction; a clock that
 * runs from 0 to T, and may be put back once; kills between any two steps, and answers to a COMMIT that
 * are lost; the programs may come to declare another period.
 *
 * A tick is a multiple of the period. sent[t]: how many messages were sent for tick t.
 * Checked: no tick is sent twice; with catch_up="all" and one period none is missing in the end, with
 * LAST the last one is there.
 *   LAST       catch_up="last"                    BACK     the clock is put back once
 *   CHANGE     the period changes from 1 to 2     LOST     an answer to a COMMIT is lost
 *   REMADE     it is deleted and declared anew, once
 *   B_ZERO     ... and then begins at version 0
 *   B_NOCHECK  the UPDATE does not ask for the version that was seen
 *   B_APART    the message is inserted in a transaction of its own
 *   B_FROMNOW  the next tick is computed from now
 *   B_NOLAST   last_at is not respected
 *   B_RESEND   a COMMIT whose answer was lost is sent again
 */
#ifndef W
#define W 2
#endif
#ifndef T
#define T 4
#endif
#ifndef KILLS
#define KILLS 1
#endif
#define MOST 2                          /* ticks in a transaction */
#define AFTER(t,p) ((((t)/(p))+1)*(p))
byte now; bool back;
byte next_at=1; byte last_at; byte version; byte period=1;      /* the row */
byte sent[T+4];
byte kills; byte lost; byte busy; byte restarts;
inline send(t) { sent[t]++; printf("I%d sends tick %d\n", i, t); assert(sent[t]==1) }
inline messages() {                     /* of the ticks from `first` to `last`, one behind the other */
  k=first;
  do :: k<=last -> send(k); k=AFTER(k,sp) :: else -> break od; k=0 }
inline due() {                          /* pure, on what was seen: ticks.due */
  first=sn;
#ifndef B_NOLAST
  if :: first<=sl && sl>0 -> first=AFTER(sl,sp) :: else fi;
#endif
#ifdef LAST
  last=(at/sp)*sp;
  if :: last<first -> last=first :: else fi;
  if :: first<=at -> first=last :: else fi;
#else
  last=first;
  if :: first+sp*(MOST-1)<=at -> last=first+sp*(MOST-1) :: else fi;
#endif
#ifdef B_FROMNOW
  behind=AFTER(now,sp)
#else
  behind=AFTER(last,sp)
#endif
}
#ifdef B_NOCHECK
#define AS_SEEN true
#else
#define AS_SEEN (version==sv)
#endif
inline update() { next_at=behind; last_at=last; version++ }
inline forget() { sn=0; sl=0; sv=0; sp=0; at=0; first=0; last=0; behind=0; again=false }
proctype Instance(byte i) {
  byte sn, sl, sv, sp, at, first, last, behind, k;
  bool again;
look:
  forget();
end:
  do
  :: atomic { next_at<=now -> sn=next_at; sl=last_at; sv=version; sp=period; at=now }
     if
     :: atomic { kills<KILLS -> kills++; printf("I%d is killed\n", i) }
        goto look
     :: skip
     fi;
fire:
     due();
     if
     :: first>at -> goto idle           /* nothing to send: what is behind last_at */
     :: else
     fi;
#ifdef B_APART
     atomic { if :: AS_SEEN -> update(); busy++ :: else -> goto look fi }
     if
     :: atomic { kills<KILLS -> kills++; busy--; printf("I%d is killed\n", i) }
        goto look
     :: atomic { messages(); busy-- }
     fi;
#else
     atomic {                           /* UPDATE and INSERT, one COMMIT */
       if
       :: AS_SEEN -> update(); messages()
       :: else -> goto look
       fi }
#ifdef LOST
     if
     :: atomic { lost==0 -> lost++; printf("I%d gets no answer\n", i) }
#ifdef B_RESEND
        atomic { messages() }
#endif
     :: skip
     fi;
#endif
#endif
     goto look;
idle:
     (next_at!=sn || version!=sv || now>at) -> goto look
  od }
#ifdef CHANGE
proctype Program() {                    /* starts with another period: Timer._declare */
  byte v, from;
  atomic { now>0 -> skip }
  do
  :: atomic { next_at>now -> v=version; from=now }
#ifndef B_NOLAST
     if :: last_at>from -> from=last_at :: else fi;
#endif
     atomic {
       if
       :: version==v -> period=2; next_at=AFTER(from,2); version++; printf("the period is 2\n"); break
       :: else
       fi }
  od }
#endif
#ifdef REMADE
proctype Remade() {                     /* ops.delete_schedule, then Timer._insert */
  atomic {
    next_at>now && version>0 -> next_at=AFTER(now,period); last_at=0;
#ifdef B_ZERO
    version=0;
#else
    version++;
#endif
    printf("it is deleted and declared anew\n") }
  }
#endif
proctype Clock() {
  do
  :: now<T -> now++; printf("... it is %d\n", now)
#ifdef BACK
  :: atomic { now>1 && !back -> now=now-2; back=true; printf("the clock is put back to %d\n", now) }
#endif
  :: now==T -> break
  od }
proctype Verdict() {
  byte t;
  atomic { now==T && next_at>now && busy==0 ->
#if defined(LAST)
    assert(sent[(T/period)*period]==1)
#elif !defined(CHANGE)
    t=1;
    do :: t<=T -> assert(sent[t]==1); t++ :: else -> break od
#else
    skip
#endif
  } }
init {
  byte i;
  atomic {
    i=1;
    do :: i<=W -> run Instance(i); i++ :: else -> break od; i=0;
    run Clock(); run Verdict();
#ifdef CHANGE
    run Program()
#endif
#ifdef REMADE
    run Remade()
#endif
  } }
