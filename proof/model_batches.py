"""The questions to the models of transactional batches: batch.pml and its two companions."""

from __future__ import annotations

from proof.model_variants import Variant, broken, live, right

ALL = "C_ALONE C_ORDER C_FLAG C_FENCE C_ONCE C_SAW C_GIVENUP"
SEEN = "C_ALONE C_FLAG C_FENCE C_ONCE C_SAW C_GIVENUP"


def _at_most(count: int, name: str, what: str, flags: str, *, model: str) -> tuple[Variant, ...]:
    """A bound that is exact: it holds at `count`, and is broken at one less."""
    return (
        right(f"{name}: {count}", f"{flags} {what}={count}", model=model),
        broken(f"{name}: not {count - 1}", f"{flags} {what}={count - 1}", model=model),
    )


def _right(name: str, flags: str, *, slow: bool = False) -> Variant:
    return right(f"batch: {name}", flags, model="batch", slow=slow)


def _live(name: str, flags: str) -> Variant:
    return live(f"batches end: {name}", flags, model="batch")


def _broken(name: str, flags: str, *, ends: bool = False) -> Variant:
    return broken(f"batch: {name}", flags, model="batch", live=ends)


def _bound(count: int, name: str, what: str, flags: str) -> tuple[Variant, ...]:
    return _at_most(count, f"batch: {name}", what, flags, model="batch")


def _blame(name: str, flags: str) -> Variant:
    return right(f"blame: {name}", flags, model="batch_blame")


def _misblame(name: str, flags: str) -> Variant:
    return broken(f"blame: {name}", flags, model="batch_blame")


def _blame_bound(count: int, name: str, what: str, flags: str) -> tuple[Variant, ...]:
    return _at_most(count, f"blame: {name}", what, flags, model="batch_blame")


def _locks(name: str, flags: str) -> Variant:
    return right(f"locks: {name}", flags, model="batch_locks")


def _deadlock(name: str, flags: str) -> Variant:
    return broken(f"locks: {name}", flags, model="batch_locks")


BATCHES = (
    # The rule.
    _right("failures", f"{ALL} MAXT=3"),
    _right("short runs", f"{ALL} SHORTRUNS KILLS=1"),
    _right("two kills", f"{ALL} KILLS=2", slow=True),
    _right("two kills, 4 messages", f"{ALL} KILLS=2 NA=4 NOFAIL"),
    _right("a kill, 4 messages", f"{ALL} KILLS=1 NA=4"),
    _right("a kill and a zombie", f"{ALL} EXPIRIES=1 KILLS=1 NA=2", slow=True),
    _right("a kill and a zombie, 3 messages", f"{ALL} EXPIRIES=1 KILLS=1 NOFAIL", slow=True),
    _right("two zombies", f"{ALL} EXPIRIES=2 NA=2 NOFAIL"),
    _right("answers lost", f"{ALL} UNKNOWN=2"),
    _right("answers lost and a kill", f"{ALL} UNKNOWN=2 KILLS=1", slow=True),
    _right("answer lost and a zombie", f"{ALL} UNKNOWN=1 EXPIRIES=1 NOFAIL"),
    _right("commit under way", f"{ALL} PENDING=1 UNKNOWN=1"),
    _right("commit under way and a kill", f"{ALL} PENDING=1 KILLS=1"),
    _right("commit under way and a zombie", f"{ALL} PENDING=1 EXPIRIES=1 NOFAIL"),
    _right("commit under way, forced rerun", f"{SEEN} PENDING=1 FORCED"),
    _right("commit under way, foreign, discard", f"{SEEN} PENDING=1 FOREIGN DISCARD NOFAIL"),
    _right("stop", f"{ALL} C_STOP STOPS=1 UNKNOWN=1"),
    _right("stop and a kill", f"{ALL} C_STOP STOPS=1 KILLS=1"),
    _right("back-off, delayed send", f"{ALL} BACKOFF NOTYET=2 KILLS=1"),
    _right("on_dead=block", f"{ALL} BLOCK KILLS=1 DISCARD"),
    _right("late head, rerun, discard", f"{SEEN} LATE=1 RERUN DISCARD"),
    _right("late follower, rerun, discard", f"{SEEN} LATE=2 RERUN DISCARD"),
    _right(
        "late, discard, a kill, an answer lost", f"{SEEN} LATE=2 DISCARD KILLS=1 UNKNOWN=1 NOFAIL"
    ),
    _right("discard, a zombie, an answer lost", f"{SEEN} DISCARD EXPIRIES=1 UNKNOWN=1 NOFAIL NA=2"),
    _right(
        "rerun, discard, a kill and a zombie",
        "C_ALONE C_FLAG C_ONCE C_GIVENUP RERUN DISCARD KILLS=1 EXPIRIES=1 NOFAIL NA=2",
        slow=True,
    ),
    _right("forced rerun, discard, answer lost", f"{SEEN} FORCED DISCARD UNKNOWN=1", slow=True),
    _right("foreign, rerun, discard, late", f"{SEEN} FOREIGN RERUN DISCARD LATE=2", slow=True),
    _right("foreign, discard, a kill", f"{SEEN} FOREIGN DISCARD KILLS=1", slow=True),
    _right(
        "foreign, forced rerun, a zombie",
        f"{SEEN} FOREIGN FORCED EXPIRIES=1 NOFAIL NA=2",
        slow=True,
    ),
    _right("foreign, discard, a zombie", f"{SEEN} FOREIGN DISCARD EXPIRIES=1 NOFAIL", slow=True),
    _right(
        "foreign, late, an answer lost, a kill", f"{SEEN} FOREIGN LATE=2 UNKNOWN=1 KILLS=1 NOFAIL"
    ),
    _right("two objects, a kill", f"{ALL} NA=3 NB=1 KILLS=1 NOFAIL"),
    _right("poison M3", f"{ALL} C_DIES POISON=8 NOFAIL MAXT=3 KILLS=1"),
    _right("poison M3, max_tries 1", f"{ALL} C_DIES POISON=8 NOFAIL MAXT=1"),
    _right("poison M2 and M3, rerun", f"{SEEN} POISON=12 NOFAIL RERUN"),
    _live("failures", ""),
    _live("two kills", "NOFAIL KILLS=2"),
    _live("a zombie", "EXPIRIES=1 NOFAIL"),
    _live("a kill and a zombie", "EXPIRIES=1 KILLS=1 NOFAIL NA=2"),
    _live("answers lost", "UNKNOWN=2"),
    _live("commit under way, a kill", "PENDING=1 KILLS=1 NOFAIL"),
    _live("stop and a kill", "STOPS=1 KILLS=1 NOFAIL"),
    _live("late, rerun, discard", "LATE=2 RERUN DISCARD NOFAIL"),
    _live("back-off", "BACKOFF NOTYET=2 KILLS=1 NOFAIL"),
    _live("foreign, discard, a kill", "FOREIGN DISCARD NOFAIL KILLS=1"),
    _live("poison M2 and M3", "POISON=12 NOFAIL MAXT=3"),
    _live("M2 and M3 fail always", "NOFAIL FAILING=12"),
    # Several objects in one transaction, and group commit.
    _right("joint, a kill", f"{ALL} MULTI NA=2 NB=1 KILLS=1", slow=True),
    _right("joint, 3 and 1 messages, a kill", f"{ALL} MULTI NA=3 NB=1 KILLS=1 NOFAIL"),
    _right(
        "joint, a zombie", "C_ALONE C_ORDER C_ONCE MULTI NA=2 NB=1 EXPIRIES=1 NOFAIL", slow=True
    ),
    _right("joint, answers lost", f"{ALL} MULTI NA=2 NB=1 UNKNOWN=2", slow=True),
    _right("joint, discard, foreign", f"{SEEN} MULTI NA=2 NB=1 DISCARD FOREIGN", slow=True),
    _right(
        "joint, discard, late, a kill",
        f"{SEEN} MULTI NA=2 NB=1 DISCARD LATE=2 KILLS=1 NOFAIL",
        slow=True,
    ),
    _live("joint, a kill", "MULTI NA=2 NB=1 NOFAIL KILLS=1"),
    _right("group, a kill", f"{ALL} GROUP NA=2 NB=1 KILLS=1", slow=True),
    _right("group, a zombie", f"{ALL} GROUP NA=1 NB=1 EXPIRIES=1 NOFAIL", slow=True),
    _right("group, answers lost", f"{ALL} GROUP NA=2 NB=1 UNKNOWN=2", slow=True),
    _live("group, a kill", "GROUP NA=2 NB=1 NOFAIL KILLS=1"),
    # Bounds: each holds, and is broken at one less. max_tries = 3.
    *_bound(3, "starts alone", "ALONE", "MAXT=3"),
    *_bound(4, "starts under its own flag", "HEADS", "MAXT=3"),
    *_bound(3, "starts under its own flag, today", "HEADS", "NOBATCH MAXT=3"),
    *_bound(5, "starts in all", "STARTS", "MAXT=3"),
    *_bound(5, "starts in all, 4 messages, max_tries 2", "STARTS", "NA=4 MAXT=2"),
    *_bound(4, "starts of one that fails always", "STARTS", "MAXT=3 NOFAIL FAILING=4"),
    *_bound(3, "... today", "STARTS", "NOBATCH MAXT=3 NOFAIL FAILING=4"),
    *_bound(4, "deaths by poison M4", "DEATHS", "MAXT=3 NOFAIL NA=4 POISON=16"),
    *_bound(3, "... today", "DEATHS", "NOBATCH MAXT=3 NOFAIL NA=4 POISON=16"),
    *_bound(4, "starts of poison M4", "STARTS", "MAXT=3 NOFAIL NA=4 POISON=16"),
    *_bound(5, "deaths by poison M3, a stop", "DEATHS", "MAXT=3 NOFAIL POISON=8 STOPS=1"),
    *_bound(5, "deaths by poison M3, short runs", "DEATHS", "MAXT=3 NOFAIL POISON=8 SHORTRUNS"),
    *_bound(1, "innocent tries", "BLAME", "MAXT=3 NOFAIL NA=4 POISON=16"),
    *_bound(1, "innocent tries, two poisons", "BLAME", "MAXT=3 NOFAIL NA=4 POISON=20"),
    _right("innocent tries: only ever the first", "MAXT=3 POISON=8 BLAME=1"),
    # Alternatives.
    _right("CRASHONLY, two kills", f"{ALL} CRASHONLY KILLS=2", slow=True),
    *_bound(6, "CRASHONLY, starts under its own flag", "HEADS", "CRASHONLY MAXT=3"),
    *_bound(9, "CRASHONLY, starts in all", "STARTS", "CRASHONLY MAXT=3"),
    *_bound(
        6,
        "CRASHONLY, starts of one that fails always",
        "STARTS",
        "CRASHONLY MAXT=3 NOFAIL FAILING=4",
    ),
    *_bound(5, "CRASHONLY, deaths by poison M3", "DEATHS", "CRASHONLY MAXT=3 NOFAIL POISON=8"),
    *_bound(
        6, "CRASHONLY, deaths by poison M4", "DEATHS", "CRASHONLY MAXT=3 NOFAIL NA=4 POISON=16"
    ),
    _broken("CRASHONLY, innocent tries: also later", "CRASHONLY MAXT=3 POISON=8 BLAME=1"),
    _right("MARK", f"{ALL} MARK POISON=8 NOFAIL MAXT=3 KILLS=1"),
    _right("MARK, deaths by poison M3, a stop: 4", "MARK MAXT=3 NOFAIL POISON=8 STOPS=1 DEATHS=4"),
    _right(
        "MARK, deaths by poison M3, short runs: 4", "MARK MAXT=3 NOFAIL POISON=8 SHORTRUNS DEATHS=4"
    ),
    _right("CFIRST", f"{ALL} CRASHONLY CFIRST KILLS=1"),
    *_bound(
        5, "CFIRST, deaths by poison M4", "DEATHS", "CRASHONLY CFIRST MAXT=3 NOFAIL NA=4 POISON=16"
    ),
    _right("PREFIX", f"{ALL} PREFIX KILLS=1"),
    _right("PREFIX, discard, an answer lost", f"{SEEN} PREFIX DISCARD UNKNOWN=1"),
    _live("PREFIX, M2 and M3 fail always", "PREFIX NOFAIL FAILING=12"),
    # One condition each taken away.
    _broken("no guard", "C_ALONE FOREIGN B_GUARD"),
    _broken("head without claimed_by", "C_FENCE EXPIRIES=1 NOFAIL B_FENCE"),
    _broken("the head's count not looked at", "C_ONCE EXPIRIES=1 NOFAIL B_NOHEAD"),
    _broken("the followers' count not looked at", "C_GIVENUP DISCARD B_NOCOUNT"),
    _broken("followers without status = 0", "C_GIVENUP DISCARD B_ANYFOLLOWER"),
    _broken("head and followers in two transactions", "C_ALONE NOFAIL B_TWOTX"),
    _broken("effects outside of the transaction", "C_ONCE KILLS=1 NOFAIL B_OUTSIDE"),
    _broken("run read before the flag", "C_FLAG LATE=1 B_RUNEARLY"),
    _broken("run passes over a waiting one", "C_SAW NOTYET=2 B_SKIPS"),
    _broken("a gap in the batch", "C_ORDER B_GAP"),
    _broken("a batch again after an exception", "NOFAIL FAILING=8 B_NOSOLO", ends=True),
    _broken("a batch again after a lost follower", "NOFAIL DISCARD B_NOSOLO", ends=True),
    _broken("an exception charges the head", "C_GUILTY NOFAIL FAILING=8 B_BLAMEHEAD"),
    _broken("who was in a crash leads again", "C_DIES B_CRASHSHARE NOFAIL POISON=8"),
    _broken("a batch with max_tries 1", "C_DIES B_LASTTRY POISON=8 NOFAIL MAXT=1"),
    _broken("a crash counts no try", "NOFAIL POISON=8 B_CRASHFREE", ends=True),
    _broken("no look: sent again", "C_FLAG UNKNOWN=1 NOFAIL B_RESENDS"),
    _broken("no look: taken for done", "C_FLAG UNKNOWN=1 NOFAIL B_TAKENFORDONE"),
    _broken("the look does not wait", "C_FLAG PENDING=1 B_LOOKPLAIN"),
    _broken("the look does not wait: two handlers", "C_ALONE PENDING=1 LATE=3 B_LOOKPLAIN"),
    _broken("the next flagged whatever it is", "C_GIVENUP DISCARD B_NEXTANY"),
    _broken("claimed_by stays", "C_ALONE FOREIGN RERUN B_KEEPS"),
    _broken(
        "recovery without take-over", "C_ALONE B_NOTAKEOVER B_RENEWS_EXPIRED EXPIRIES=1 NOFAIL"
    ),
    _broken("renewal after a take-over", "C_ALONE B_RENEWS_TAKEN EXPIRIES=1 NOFAIL"),
    _broken("recovery from whoever has it", "C_ALONE B_RECOVERS_ANY EXPIRIES=1 NA=2"),
    _broken("old handler not waited for", "C_ALONE B_GHOST EXPIRIES=1 NOFAIL"),
    _broken("half of a joint batch", "C_ONCE DISCARD NOFAIL MULTI NA=2 NB=1 B_HALFJOINT"),
    # Second locks.
    _right("due not asked for", f"{ALL} NOTYET=2 BACKOFF DISCARD B_NODUE"),
    _right("lane dropped, not answered", "C_ALONE C_FLAG C_ONCE UNKNOWN=1 PENDING=1 B_UNANSWERED"),
    # It happens at all.
    _broken("happens: three in one", "REACH=1 NOFAIL"),
    _broken("happens: the flag moves on behind it", "REACH=2 NOFAIL"),
    _broken("happens: it has lost its head", "REACH=3 NOFAIL EXPIRIES=1"),
    _broken("happens: it has lost a follower", "REACH=4 NOFAIL DISCARD"),
    _broken("happens: two objects in one", "REACH=5 NOFAIL MULTI NA=2 NB=1"),
    _broken("happens: an old handler settles in time", "REACH=6 NOFAIL EXPIRIES=1"),
    _broken("happens: an old handler settles too late", "REACH=7 NOFAIL EXPIRIES=1"),
    _broken("happens: it is committed later", "REACH=8 NOFAIL PENDING=1"),
    # Who is blamed, over several objects.
    _blame("today", "NOBATCH NA=2 NB=2 POISON=20 FAILS=2"),
    _blame("batches", "NA=2 NB=2 POISON=20 FAILS=2"),
    _blame("batches, 3 objects", "NA=2 NB=2 NC=1 POISON=20 FAILS=1"),
    _blame("batches, failed twice itself", "NA=3 NB=0 POISON=8 FAILS=3 C_NEVERDIES"),
    _blame("batches, max_tries 2", "NA=2 NB=1 POISON=4 MAXT=2 C_NEVERDIES"),
    _blame("batches, max_tries 1", "NA=3 NB=0 POISON=8 MAXT=1 C_NEVERDIES"),
    _blame("joint", "MULTI NA=2 NB=2 POISON=20 FAILS=2"),
    _blame("joint, 3 objects", "MULTI NA=2 NB=2 NC=1 POISON=4 FAILS=2"),
    _blame("group", "GROUP NA=2 NB=2 POISON=20 FAILS=2"),
    _blame("CRASHONLY", "CRASHONLY NA=2 NB=2 POISON=20 FAILS=2"),
    _misblame("CRASHONLY, failed twice itself", "CRASHONLY NA=3 NB=0 POISON=8 FAILS=2 C_NEVERDIES"),
    _blame("MARK", "MARK NA=3 NB=1 POISON=8 FAILS=2"),
    live("batches end: blame", "NA=2 NB=1 POISON=4 FAILS=2", model="batch_blame"),
    live("batches end: blame, joint", "MULTI NA=2 NB=2 POISON=20", model="batch_blame"),
    *_blame_bound(2, "innocent tries, today", "BLAMEALL", "NOBATCH NA=2 NB=1 POISON=4 FAILS=1"),
    *_blame_bound(2, "innocent tries", "BLAMEALL", "NA=2 NB=1 POISON=4 FAILS=1"),
    *_blame_bound(2, "innocent tries, joint", "BLAMEALL", "MULTI NA=2 NB=1 POISON=4 FAILS=1"),
    *_blame_bound(2, "innocent tries, group", "BLAMEALL", "GROUP NA=2 NB=1 POISON=4 FAILS=1"),
    *_blame_bound(3, "deaths, today", "DEATHS", "NOBATCH NA=2 NB=1 POISON=4"),
    *_blame_bound(4, "deaths", "DEATHS", "NA=2 NB=1 POISON=4"),
    *_blame_bound(4, "deaths, joint", "DEATHS", "MULTI NA=2 NB=1 POISON=4"),
    *_blame_bound(3, "deaths, group", "DEATHS", "GROUP NA=2 NB=1 POISON=4"),
    *_blame_bound(3, "starts, today", "STARTS", "NOBATCH NA=2 NB=1 FAILS=4"),
    *_blame_bound(4, "starts, joint", "STARTS", "MULTI NA=2 NB=1 FAILS=4"),
    *_blame_bound(4, "starts, group", "STARTS", "GROUP NA=2 NB=1 FAILS=4"),
    *_blame_bound(
        3, "starts, group with savepoints", "STARTS", "GROUP SAVEPOINTS NA=2 NB=1 FAILS=4"
    ),
    _misblame("who was in a crash leads again", "B_CRASHSHARE NA=2 NB=0 POISON=4"),
    _misblame(
        "CRASHONLY, an exception charges the head", "CRASHONLY B_BLAMEHEAD FAILS=4 NA=2 NB=0"
    ),
    _misblame("a batch with max_tries 1", "B_LASTTRY NA=3 NB=0 POISON=8 MAXT=1 C_NEVERDIES"),
    _misblame("no quarantine", "B_NOQUARANTINE POISON=4"),
    _misblame("claims beside a quarantined one", "B_BESIDE NA=2 NB=2 POISON=20"),
    _blame("a run behind a quarantined one", "B_RUNQUARANTINE POISON=4"),
    # Row locks.
    _locks("no others", ""),
    _locks("foreign on the follower", "FOREIGN=2"),
    _locks("foreign on the next", "FOREIGN=3"),
    _locks("foreign, claim, ops", "FOREIGN=2 CLAIM OPS"),
    _locks("foreign, claim, ops, a recovery", "RECOVERY FOREIGN=2 CLAIM OPS"),
    _locks("joint and its zombie, foreign, claim, ops", "JOINT FOREIGN=3 CLAIM OPS RECOVERY"),
    _locks("a commit under way, the look locks", "PENDING"),
    _locks("business rows, one by one", "BUSINESS SINGLES"),
    _deadlock("not locked first, foreign", "B_UNLOCKED FOREIGN=2"),
    _deadlock("not locked first, claim", "B_UNLOCKED CLAIM"),
    _deadlock("lanes locked one by one", "JOINT B_LANEWISE"),
    _deadlock("operators lock in another order", "OPS B_OPSORDER"),
    _deadlock("head settled before followers", "FOREIGN=2 B_HEADEARLY"),
    _deadlock("follower without status = 0", "OPS B_NOSTATUS"),
    _deadlock("the look does not wait", "PENDING B_LOOKPLAIN"),
    _deadlock("known: business rows in two batches", "BUSINESS"),
)
