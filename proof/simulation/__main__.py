"""Replay a seed, or look for one: `python -m proof.simulation SEED [--config NAME] [--count N]`."""

from __future__ import annotations

import argparse
import sys

from proof.simulation.configs import CONFIGS
from proof.simulation.plants import PLANTS
from proof.simulation.schedule import Schedule
from proof.simulation.world import World


def main(arguments: list[str]) -> int:
    """0: nothing was found; 1: the first schedule with a violation was printed."""
    parser = argparse.ArgumentParser(prog="python -m proof.simulation", description=__doc__)
    parser.add_argument("seed", type=int, help="the first seed")
    parser.add_argument("--config", choices=CONFIGS, help="default: all that find nothing, in turn")
    parser.add_argument("--count", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--plant", choices=PLANTS, help="with this bug planted")
    parser.add_argument("--show", action="store_true", help="print the schedule in any case")
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.seed, chosen.seed + chosen.count)
    if chosen.plant:
        report = PLANTS[chosen.plant].hunt(seeds)
        print(report or f"not found: {chosen.plant}")
        return int(report is not None)
    for name in [chosen.config] if chosen.config else CONFIGS:
        world = World(CONFIGS[name])
        for seed in seeds:
            report = Schedule(world, CONFIGS[name], seed).run(tell=chosen.show)
            if report.wrong or chosen.show:
                print(report)
            if report.wrong:
                return 1
        world.close()
        print(f"{name}: {len(seeds)} schedules, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
