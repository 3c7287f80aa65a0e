// graphile-worker, from the npm project that `setup` created.
import { createRequire } from "node:module";
import process from "node:process";
import { answer, url } from "./commands.mjs";

const require = createRequire(`${process.env.BENCH_PACKAGES}/package.json`);
const { Logger, makeWorkerUtils, run, runMigrations } = require("graphile-worker");

// Its default logger prints a line per job, and that time would be measured too.
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});
let utils;

await answer({
  install: () => runMigrations({ connectionString: url, logger }),
  open: async () => {
    utils = await makeWorkerUtils({ connectionString: url, logger });
  },
  close: () => utils.release(),
  enqueue: (number) => utils.addJob("nothing", { number }),
  enqueueMany: (numbers) => utils.addJobs(numbers.map((number) => ({ identifier: "nothing", payload: { number } }))),
  work: async (settings, started) => {
    const taskList = { nothing: async (payload) => started(payload.number) };
    const runner = await run({ preset: { worker: { connectionString: url, logger, ...settings } }, taskList });
    await runner.promise;
  },
});
