// graphile-worker as its page on performance has it: local queue, completions in batches.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { JOB, atPace, chunks, clock, key, main, note, untilOver } from "./common.mjs";

const quiet = new Logger(() => () => {});
const preset = {
  worker: {
    connectionString: JOB.dsn,
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    logger: quiet,
  },
};

async function setup() {
  const utils = await makeWorkerUtils({ connectionString: JOB.dsn, logger: quiet });
  await utils.migrate();
  for (const numbers of chunks()) {
    await utils.addJobs(
      numbers.map((i) => ({
        identifier: "bench",
        payload: { i, key: key(i) },
        ...(JOB.objects ? { queueName: key(i) } : {}),
      })),
    );
  }
}

async function work() {
  const bench = async (payload) => {
    const started = clock();
    note(payload.i, payload.key, started);
  };
  await run({ preset, taskList: { bench }, noHandleSignals: true });
  await untilOver();
}

async function send() {
  const utils = await makeWorkerUtils({ connectionString: JOB.dsn, logger: quiet });
  await atPace((i) => utils.addJob("bench", { i, key: "" }));
}

await main({ setup, work, send });
