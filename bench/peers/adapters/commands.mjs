// The node version of commands.py.
import fs from "node:fs";
import path from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";

const WARM_UP_JOBS = 10;
const WARM_UP_GAP_MS = 50;
const SETTLE_MS = 1000;
const COUNTED_AT_ONCE = 500;

export const url = process.env.BENCH_URL;

const seconds = () => Number(process.hrtime.bigint()) / 1e9;

function recorder(path) {
  const file = fs.openSync(path, "a");
  const record = Buffer.alloc(16);
  return (number) => {
    record.writeBigInt64LE(BigInt(number), 0);
    record.writeDoubleLE(seconds(), 8);
    fs.writeSync(file, record);
  };
}

function countedStarts(folder) {
  let count = 0;
  let write;
  return () => {
    count += 1;
    if (count === 1 || count % COUNTED_AT_ONCE === 0) {
      write ??= recorder(path.join(folder, `${process.pid}.counts`));
      write(count);
    }
  };
}

function probe() {
  const folder = process.env.BENCH_FOLDER;
  return process.env.BENCH_MEASURE === "pickup" ? recorder(path.join(folder, "started")) : countedStarts(folder);
}

async function bulk(adapter, jobs, batch) {
  const started = seconds();
  for (let first = 0; first < jobs; first += batch) {
    await adapter.enqueueMany(Array.from({ length: Math.min(batch, jobs - first) }, (_, index) => first + index));
  }
  return { jobs, seconds: seconds() - started };
}

async function single(adapter, limit) {
  for (let number = 0; number < WARM_UP_JOBS; number++) await adapter.enqueue(number);
  const started = seconds();
  let jobs = 0;
  let passed;
  while ((passed = seconds() - started) < limit) {
    await adapter.enqueue(jobs);
    jobs += 1;
  }
  return { jobs, seconds: passed };
}

async function pickup(adapter, jobs, gap) {
  for (let number = 1; number <= WARM_UP_JOBS; number++) {
    await adapter.enqueue(-number);
    await sleep(WARM_UP_GAP_MS);
  }
  await sleep(SETTLE_MS);
  const returned = [];
  for (let number = 0; number < jobs; number++) {
    await adapter.enqueue(number);
    returned.push([number, seconds()]);
    await sleep(gap * 1000 * (0.5 + Math.random()));
  }
  return returned;
}

export async function answer(adapter) {
  const [command, ...words] = process.argv.slice(2);
  if (command === "work") return await adapter.work(JSON.parse(words[0]), probe());
  let result = null;
  if (command === "install") {
    await adapter.install();
  } else {
    await adapter.open();
    result = await { bulk, single, pickup }[command](adapter, ...words.map(Number));
    await adapter.close();
  }
  console.log(JSON.stringify(result));
}
