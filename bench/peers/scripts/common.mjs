// What the scripts of the Node peers share; see common.py for the job and the log.
import { existsSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export const JOB = JSON.parse(process.env.MSGWORKER_PEER_JOB);
const CHUNK = 5_000;
const PER_SECOND = 50;
const log = [];

export const key = (i) =>
  JOB.objects ? "obj" + String(Math.abs(i * 7919) % JOB.objects).padStart(8, "0") : "";

export function* chunks() {
  for (let start = 1 - JOB.finished; start <= JOB.messages; start += CHUNK) {
    const count = Math.min(CHUNK, JOB.messages - start + 1);
    yield Array.from({ length: count }, (_, at) => start + at);
  }
}

export const clock = () => process.hrtime.bigint();

export function note(i, object, started) {
  log.push([i, object, started, clock()]);
}

export const handled = () => log.length;

export async function untilOver() {
  const begun = Date.now();
  while (Date.now() - begun < JOB.seconds * 1000) {
    if (JOB.messages && log.length >= JOB.messages) return;
    if (existsSync(JOB.log + ".stop")) return;
    await sleep(20);
  }
}

export async function atPace(send) {
  const begun = performance.now();
  const count = Math.floor(PER_SECOND * JOB.seconds);
  for (let i = 1; i <= count; i++) {
    await sleep(Math.max(0, begun + (i * 1000) / PER_SECOND - performance.now()));
    await send(i);
    const now = clock();
    log.push([i, "", now, now]);
  }
}

export async function main(steps) {
  try {
    await steps[JOB.step]();
    if (JOB.step !== "setup") {
      writeFileSync(JOB.log, log.map((entry) => entry.join("\t") + "\n").join(""));
    }
    process.exit(0);
  } catch (error) {
    console.error(error);
    process.exit(1);
  }
}
