// pg-boss: batches in bursts, key_strict_fifo for order, LISTEN/NOTIFY for pickup, and
// `transactional` batches of 500, whose effects commit with the completion.
import { setTimeout as sleep } from "node:timers/promises";
import { PgBoss } from "pg-boss";
import { JOB, atPace, chunks, clock, handled, key, main, note, untilOver } from "./common.mjs";

const BATCH = 500;
const WORKERS = 2;
const QUEUE = "bench";
const effects = JOB.kind.startsWith("effects");

const boss = new PgBoss({
  connectionString: JOB.dsn,
  max: 10,
  useListenNotify: JOB.kind === "pickup",
});
boss.on("error", console.error);

async function setup() {
  await boss.start();
  await boss.createQueue(QUEUE, {
    policy: JOB.objects ? "key_strict_fifo" : "standard",
    notify: JOB.kind === "pickup",
  });
  for (const numbers of chunks()) {
    await boss.insert(
      QUEUE,
      numbers.map((i) => ({
        data: { i, key: key(i) },
        ...(JOB.objects ? { singletonKey: key(i) } : {}),
      })),
    );
  }
  await boss.getDb().executeSql(
    "UPDATE pgboss.job SET state = 'completed', completed_on = now() WHERE (data ->> 'i')::int <= 0",
  );
  await boss.getDb().executeSql(
    "CREATE TABLE effect (i bigint PRIMARY KEY, object_id text, cents bigint)",
  );
}

const nothing = async (jobs) => {
  for (const job of jobs) note(job.data.i, job.data.key, clock());
};

const write = async (jobs, tx) => {
  await tx.executeSql("INSERT INTO effect SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[])", [
    jobs.map((job) => job.data.i),
    jobs.map((job) => job.data.key),
    jobs.map(() => 1),
  ]);
  for (const job of jobs) note(job.data.i, job.data.key, clock());
};

async function work() {
  await boss.start();
  const options = {
    batchSize: BATCH,
    localConcurrency: WORKERS,
    burstWhenBatchFull: true,
    pollingIntervalSeconds: 0.5,
    ...(effects ? { transactional: true } : {}),
  };
  await boss.work(QUEUE, options, effects ? write : nothing);
  await untilOver();
  for (let n = 0; effects && n < 100 && (await written()) < handled(); n++) await sleep(50);
}

const written = async () =>
  Number((await boss.getDb().executeSql("SELECT count(*) FROM effect")).rows[0].count);

async function send() {
  await boss.start();
  await atPace((i) => boss.send(QUEUE, { i, key: "" }));
}

await main({ setup, work, send });
