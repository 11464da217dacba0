"""The questions to the models of the protocol, but for those of batches (model_batches.py)."""

from __future__ import annotations

from dataclasses import dataclass

HOLDS, BROKEN = "holds", "counterexample"


@dataclass(frozen=True, slots=True)
class Variant:
    """One question to a model. flags: what is defined; live: every message ends, weakly fair."""

    name: str
    expected: str
    flags: str
    model: str = "flag"
    live: bool = False
    slow: bool = False


ALL = "C_ALONE C_ORDER C_FLAG C_FENCE"
HELD = "C_ALONE C_FLAG C_FENCE"  # of the model without owners
FREED = "RELEASES=1 EXPIRIES=3"
SEEN = "C_ALONE C_FLAG C_FENCE"  # with late commits and reruns the order is that of what was seen


def right(name: str, flags: str, *, model: str = "flag", slow: bool = False) -> Variant:
    return Variant(name, HOLDS, flags, model, slow=slow)


def live(name: str, flags: str, *, model: str = "flag") -> Variant:
    return Variant(name, HOLDS, flags, model, live=True)


def broken(name: str, flags: str, *, model: str = "flag", live: bool = False) -> Variant:
    return Variant(name, BROKEN, flags, model, live)


PROTOCOL = (
    right("failures", f"{ALL} C_TRIES C_ONCE MAXT=3 REJECT"),
    right("short runs", f"{ALL} SHORTRUNS KILLS=1"),
    right("two kills", f"{ALL} C_TRIES KILLS=2", slow=True),
    right("a kill and a zombie", f"{ALL} C_TRIES C_ONCE EXPIRIES=1 KILLS=1 N=2", slow=True),
    right("a kill and a zombie, 3 messages", f"{ALL} C_TRIES EXPIRIES=1 KILLS=1", slow=True),
    right("two zombies", f"{ALL} EXPIRIES=2 N=2", slow=True),
    right("three instances", f"{ALL} KILLS=1 W=3 NOFAIL"),
    right("two recover, one dies of it", f"{ALL} EXPIRIES=1 RKILLS=1 R=2 NOFAIL", slow=True),
    right("answers lost", f"{ALL} C_ONCE UNKNOWN=2"),
    right("answers lost and a kill", f"{ALL} C_ONCE UNKNOWN=2 KILLS=1", slow=True),
    right("answer lost and a zombie", f"{ALL} UNKNOWN=1 EXPIRIES=1 NOFAIL"),
    right("delayed settle", f"{ALL} DELAYED=1 LATERS=1"),
    right("delayed settle and a kill", f"{ALL} DELAYED=1 KILLS=1", slow=True),
    right("delayed settle, forced rerun", f"{SEEN} DELAYED=1 FORCED N=2"),
    right("delayed failure, rerun", f"{SEEN} DELAYED=1 RERUN N=2 MAXT=1"),
    right("delayed settle and a zombie", f"{ALL} DELAYED=1 EXPIRIES=1 NOFAIL"),
    right("commit under way", f"{ALL} C_ONCE TX PENDING=1 UNKNOWN=1 LATERS=1"),
    right(
        "commit under way, late, rerun, discard", f"{SEEN} C_ONCE TX PENDING=1 LATE RERUN DISCARD"
    ),
    right("commit under way and a kill", f"{ALL} C_ONCE TX PENDING=1 KILLS=1"),
    right("commit under way and a zombie", f"{ALL} C_ONCE TX PENDING=1 EXPIRIES=1 NOFAIL"),
    right("commit under way, foreign consumer", f"{SEEN} C_ONCE TX PENDING=1 FOREIGN DISCARD"),
    right("stop", f"{ALL} C_STOP STOPS=1 UNKNOWN=1"),
    right("stop and a kill", f"{ALL} C_TRIES C_STOP STOPS=1 KILLS=1 NOFAIL"),
    right("back-off", f"{ALL} BACKOFF LATERS=1 KILLS=1"),
    right("on_dead=block", f"{ALL} BLOCK KILLS=1 REJECT"),
    right("late, rerun, discard", f"{SEEN} LATE RERUN DISCARD REJECT"),
    right("edits", f"{ALL} C_TRIES EDIT REJECT"),
    right("edits, rerun, discard", f"{SEEN} EDIT RERUN DISCARD N=2"),
    right("edits, late, a zombie", f"{SEEN} EDIT LATE EXPIRIES=1 NOFAIL N=2"),
    right("edits, delayed settle", f"{ALL} EDIT DELAYED=1 NOFAIL N=2"),
    right("forced rerun, late, a kill", f"{SEEN} FORCED LATE KILLS=1 N=2"),
    right("foreign consumer", f"{SEEN} FOREIGN RERUN LATE"),
    right("foreign consumer and a kill", f"{SEEN} FOREIGN DISCARD KILLS=1 NOFAIL"),
    *(right(f"poison M{m}", f"{ALL} C_BLAME C_TRIES NOFAIL POISON={m} MAXT=3") for m in (1, 2, 3)),
    live("all end: failures", "REJECT LATERS=1"),
    live("all end: two kills", "NOFAIL KILLS=2"),
    live("all end: a zombie", "EXPIRIES=1 NOFAIL"),
    live("all end: a kill and a zombie", "EXPIRIES=1 KILLS=1 NOFAIL N=2"),
    live("all end: who recovers dies", "RKILLS=1 R=2 KILLS=1 NOFAIL N=2"),
    live("all end: answers lost", "UNKNOWN=2"),
    live("all end: delayed settle", "DELAYED=1 KILLS=1 NOFAIL"),
    live("all end: commit under way", "TX PENDING=1 KILLS=1 NOFAIL"),
    live("all end: stop and a kill", "STOPS=1 KILLS=1 NOFAIL"),
    live("all end: late, rerun, discard", "LATE RERUN DISCARD NOFAIL"),
    live("all end: edits", "EDIT RERUN DISCARD NOFAIL N=2"),
    live("all end: back-off", "BACKOFF KILLS=1 NOFAIL"),
    live("all end: foreign consumer", "FOREIGN NOFAIL KILLS=1"),
    live("all end: poison", "POISON=2 NOFAIL"),
    # Second locks: one taken away is not missed while nothing else goes wrong.
    right("no guard, nothing late", "B_GUARD C_ALONE KILLS=1"),
    right("no take-over, late renewal refused", "B_NOTAKEOVER STRICT C_ALONE EXPIRIES=1 NOFAIL"),
    right("sent again without a look", "B_RESENDS C_ALONE C_FENCE C_ONCE UNKNOWN=2 NOFAIL"),
    right("plain handlers, the look does not wait", f"{ALL} C_ONCE B_LOOKPLAIN PENDING=1 KILLS=1"),
    # What the protocol does not stand: see README.md.
    broken("known: strict order, late commit", "C_ORDER LATE"),
    # One condition each taken away.
    broken("no guard, late commit", "B_GUARD C_ALONE LATE"),
    broken("no guard, rerun", "B_GUARD C_ALONE RERUN"),
    broken("id kept, a settle under way", f"{SEEN} DELAYED=1 FORCED N=2 NOFAIL B_SAMEID"),
    broken("no fence", "B_FENCE C_FENCE EXPIRIES=1 NOFAIL"),
    broken("earlier running, not unfinished", "B_RUNNING C_ORDER BACKOFF"),
    broken("status and tries not as seen", "B_SEEN C_TRIES"),
    broken("run read before the flag", "B_RUNEARLY C_ORDER LATE"),
    broken("run passes over a waiting one", "B_SKIPS C_ORDER BACKOFF RERUN"),
    broken("an edited message stays new", f"{SEEN} EDIT B_EDITS_NEW NOFAIL N=2"),
    broken(
        "edited and rerun while its object runs",
        f"{SEEN} EDIT RERUN DISCARD NOFAIL N=2 B_EDITS_GONE",
    ),
    broken("handler ahead of the flag", "B_AHEAD C_FLAG"),
    broken("... alone no more", "B_AHEAD C_ALONE DISCARD"),
    broken("... blames the wrong one", "B_AHEAD C_BLAME POISON=2 NOFAIL"),
    broken("recovery without take-over", "B_NOTAKEOVER C_ALONE EXPIRIES=1 NOFAIL"),
    broken("renewal after a take-over", "B_RENEWS_TAKEN C_ALONE EXPIRIES=1 NOFAIL"),
    broken("recovery from whoever has it", "B_RECOVERS_ANY C_ALONE EXPIRIES=1 N=2"),
    broken("a crash counts no try", "B_CRASHFREE C_TRIES KILLS=3 NOFAIL"),
    broken("... so poison lives indefinitely", "B_CRASHFREE POISON=2 NOFAIL", live=True),
    broken("claimed_by stays", "B_KEEPS C_ALONE FOREIGN RERUN"),
    broken("handler of a lost id not waited for", "B_GHOST C_ALONE EXPIRIES=1 NOFAIL"),
    broken("lease dropped without a look", "B_LEAVES C_STOP STOPS=1 UNKNOWN=1"),
    broken("claims before the answer", "B_UNANSWERED C_ALONE DELAYED=1 N=2 B_SAMEID"),
    broken("the look does not wait", "B_LOOKPLAIN C_FLAG TX PENDING=1 NOFAIL"),
    broken("... two handlers", "B_LOOKPLAIN C_ALONE TX PENDING=1 LATE NOFAIL"),
    broken("outcome of any claim", "B_ANYCLAIM C_FLAG DELAYED=1 LATERS=1 B_SAMEID"),
    broken("flagged rows without a lane never released", "B_NOSWEEP UNKNOWN=1 NOFAIL", live=True),
    broken("orphans never recovered", "B_NOORPHANS EXPIRIES=1 NOFAIL", live=True),
    right("quarantine", "", model="quarantine"),
    right("quarantine, 2 poisons", "POISONS=2 FAILS=1", model="quarantine"),
    right("quarantine, 3 poisons", "POISONS=3 N=4", model="quarantine"),
    live("all end: quarantine", "POISONS=2", model="quarantine"),
    broken("no quarantine", "B_NOQUARANTINE", model="quarantine"),
    broken("claims beside a quarantined one", "B_BESIDE POISONS=2", model="quarantine"),
    broken("known: killed from outside too", "KILLS=1", model="quarantine"),
    right("without owners", f"{HELD} EXPIRIES=3 FAILS=1", model="unowned"),
    right("without owners, operators release", f"{HELD} RELEASES=2 EXPIRIES=4", model="unowned"),
    live("all end: without owners", "EXPIRIES=3 FAILS=1", model="unowned"),
    live("all end: without owners, operators release", "RELEASES=2 EXPIRIES=3", model="unowned"),
    broken("what cannot be recovered is forgotten", "B_FORGETS", model="unowned", live=True),
    broken("an outcome asks for the status alone", f"{FREED} B_FENCE C_FENCE", model="unowned"),
    broken(
        "what is carried over starts without a read", f"{FREED} B_UNASKED C_FLAG", model="unowned"
    ),
    broken("... asked before the new lease", f"{FREED} B_ASKS_EARLY C_FLAG", model="unowned"),
    broken("... asked without a lock", f"{FREED} B_UNLOCKED C_FLAG", model="unowned"),
    broken(
        "operators release beside the living",
        "RELEASES=1 B_RELEASES_LIVING C_FLAG",
        model="unowned",
    ),
    broken(
        "known: rerun to the tries of an old claim",
        f"{FREED} RERUNS=1 MAXT=1 C_FENCE",
        model="unowned",
    ),
    right("permits: a kill", "KILLS=1", model="permits"),
    right("permits: 3 instances, 2 permits", "MAX=2 W=3 KILLS=1 UNKNOWN=1", model="permits"),
    right("permits: a kill and a zombie", "EXPIRIES=1 KILLS=1", model="permits"),
    live("all end: permits, answers lost", "KILLS=1 UNKNOWN=1", model="permits"),
    live("all end: permits, a zombie", "KILLS=1 EXPIRIES=1", model="permits"),
    broken("permits without a lock", "B_NOLOCK", model="permits"),
    broken("permits counted before the lock", "B_EARLY", model="permits"),
    broken("permits: unlocked before the commit", "B_UNLOCK", model="permits"),
    broken("permits: flagged behind another message", "B_FOLLOWER", model="permits"),
    broken("permits of who has no lease not counted", "B_LIVE EXPIRIES=1", model="permits"),
    broken("permits free before the handler has ended", "B_BEFORE", model="permits"),
    broken("permits of the dead never come back", "B_KEPT KILLS=1", model="permits", live=True),
    right("cancel", "C_HIT C_START C_DONE", model="cancel"),
    live("no request stays: cancel", "CANCELS=1 RERUNS=1", model="cancel"),
    broken("a rerun keeps the request", "C_HIT B_KEEPS", model="cancel"),
    broken("what waits is ended as it was read", "C_HIT B_UNASKED", model="cancel"),
    broken("the lanes are read after the requests", "C_HIT B_LATE", model="cancel"),
    broken("a request is noted for any claim", "C_HIT B_ANYCLAIM", model="cancel"),
    right("jobs: a kill", "", model="job"),
    right("jobs: three instances, reruns", "W=3 RERUNS=2", model="job", slow=True),
    live("the report is sent: jobs", "KILLS=2", model="job"),
    broken("jobs: senders lock nothing", "B_NOLOCK", model="job"),
    broken("jobs: senders ask for no seal", "B_NOASK", model="job"),
    broken("jobs: completed without a seal", "B_OPEN", model="job"),
    broken("jobs: what the look saw is not asked again", "B_SEEN RERUNS=1", model="job"),
    broken("jobs: the report in another transaction", "B_APART", model="job"),
    broken("jobs: what a handler sends comes after its outcome", "B_LATE", model="job"),
    broken("jobs: only a settle looks, in its transaction", "B_ONCE", model="job", live=True),
    right("ticks: a kill", "", model="schedule"),
    right("ticks: only the last one", "LAST", model="schedule"),
    right("ticks: answers lost", "LOST", model="schedule"),
    right("ticks: the clock put back", "BACK", model="schedule"),
    right("ticks: another period", "CHANGE", model="schedule"),
    right("ticks: another period, the clock put back", "CHANGE BACK", model="schedule", slow=True),
    right("ticks: three instances", "W=3", model="schedule", slow=True),
    right("ticks: deleted and declared anew", "REMADE", model="schedule"),
    broken("ticks without the version", "B_NOCHECK", model="schedule"),
    broken("ticks: declared anew at version 0", "REMADE B_ZERO", model="schedule"),
    broken("ticks: the message in another transaction", "B_APART", model="schedule"),
    broken("ticks computed from now", "B_FROMNOW", model="schedule"),
    broken("ticks: the last one not respected", "B_NOLAST CHANGE BACK", model="schedule"),
    broken("ticks: sent again after a lost answer", "B_RESEND LOST", model="schedule"),
    right("chain: a kill, a zombie, an answer lost", "", model="chain"),
    right("chain: two kills, two answers lost", "KILLS=2 UNKNOWN=2", model="chain"),
    right("chain: two zombies, three tries", "EXPIRIES=2 MAXT=3", model="chain"),
    right("chain: three instances", "W=3", model="chain"),
    right("chain: reruns", "RERUNS=2", model="chain"),
    right("chain: transactional", "TX RERUNS=1 KILLS=2", model="chain"),
    live("all end: chain", "", model="chain"),
    broken("chain: outcome and INSERT apart", "B_APART UNKNOWN=0", model="chain"),
    broken("chain: sent for a lost message", "B_UNFENCED", model="chain"),
    broken("chain: a failed try sends", "B_FAILED", model="chain"),
    broken("chain: sent at the call", "B_AT_CALL", model="chain"),
    broken("chain: sent again after a lost answer", "B_RESENDS", model="chain"),
    broken("chain: a crash in the last try tells nobody", "B_SILENT", model="chain"),
)
