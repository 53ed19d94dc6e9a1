// Runs one script again and again, for one job at a time. Jobs come as lines of JSON over the socket that is our standard
// input, and answers go back the same way: standard output and error belong to the script. The next jobs may come while one runs.
// Then the answer is written to standard output, behind a mark: it is looked for there, and wakes nobody.

import { writeSync } from 'node:fs';
import net from 'node:net';
import { Readable } from 'node:stream';
import vm from 'node:vm';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';

const RESULT_CHARS_MAX = 16384;
// An answer in standard output must be written at once, as a child of the script may write there, too: 4,096 bytes are.
const QUIET_CHARS_MAX = 1000;
// How often it is seen whether a job that waits for another should be given back.
const GIVE_BACK_EVERY = 10;
// What a script may replace, as it was before.
const { setTimeout } = globalThis;
const { hrtime } = process;
const home = process.cwd();
const workspace = pathToFileURL(home + '/script.mjs').href;
const base = { ...process.env };
const wire = new net.Socket({ fd: 0, readable: true, writable: true });
// The wire is not for scripts. What they read from is empty, and every job has one of its own, as an end is told only once.
let stdin;
const empty = () => new Readable({ read() { this.push(null); } });
Object.defineProperty(process, 'stdin', { get: () => (stdin ??= empty()), enumerable: true, configurable: true });
// What a script writes is in the pipe before its answer, and does not pile up here when it writes too much.
for (const stream of [process.stdout, process.stderr]) stream._handle?.setBlocking?.(true);

// A script that never yields keeps us from seeing that the server is gone. This thread sees it.
const watcher = `
  setInterval(() => process.ppid === ${Number(process.argv[2])} || process.kill(-process.pid, 'SIGKILL'), 1000);
`;
new Worker(watcher, { eval: true }).unref();
const leave = () => process.kill(-process.pid, 'SIGKILL');
wire.on('close', leave).on('error', leave).on('end', leave);

class Exit {
  constructor(code) {
    this.code = Number(code ?? process.exitCode ?? 0);
  }
}
process.exit = (code) => {
  throw new Exit(code);
};

const isSpace = /\s/;

// Where the code begins after the imports at the head of a script.
function afterImports(text) {
  let at = 0;
  const skipSpace = () => {
    for (;;) {
      if (at < text.length && isSpace.test(text[at])) at += 1;
      else if (text.startsWith('//', at)) at = endOf('\n');
      else if (text.startsWith('/*', at)) at = endOf('*/', at + 2);
      else return;
    }
  };
  const endOf = (mark, from = at) => {
    const found = text.indexOf(mark, from);
    return found < 0 ? text.length : found + mark.length;
  };
  let end = 0;
  for (;;) {
    skipSpace();
    // Neither import(…) nor import.meta: those are expressions.
    if (!/^import(?![\w$]|\s*[(.])/.test(text.slice(at, at + 64))) return end;
    // The name of the module is the first string that is not the name of something in it.
    at += 'import'.length;
    for (let depth = 0; at < text.length; ) {
      skipSpace();
      const c = text[at];
      if (c === '"' || c === "'") {
        at = endOf(c, at + 1);
        if (depth === 0) break;
      } else {
        if (c === '{') depth += 1;
        if (c === '}') depth -= 1;
        at += 1;
      }
    }
    end = at;
    skipSpace();
    if (/^(with|assert)\s*\{/.test(text.slice(at, at + 16))) end = at = endOf('}');
    skipSpace();
    if (text[at] === ';') end = at += 1;
  }
}

// Older ones of Node say `assert`.
const load = async (specifier, attributes) =>
  import(await import.meta.resolve(specifier, workspace), { with: attributes, assert: attributes });

async function native(specifier, attributes) {
  const loaded = await load(specifier, attributes);
  const names = Object.keys(loaded);
  const module = new vm.SyntheticModule(names, () => names.forEach((name) => module.setExport(name, loaded[name])));
  return module;
}

// The script as a function. Its imports are those of a module in the workspace; lines keep their numbers.
async function compile(text) {
  const head = afterImports(text);
  const code = `${text.slice(0, head)};export default async function () {${text.slice(head)}\n}`;
  const module = new vm.SourceTextModule(code, {
    identifier: 'script',
    importModuleDynamically: (specifier, _, attributes) => load(specifier, attributes),
    initializeImportMeta: (meta) => {
      meta.url = workspace;
    },
  });
  await module.link(async (specifier, _, { attributes, assert }) => {
    const linked = await native(specifier, attributes ?? assert);
    await linked.link(() => {});
    return linked;
  });
  await module.evaluate();
  return module.namespace.default;
}

// A plain object, always the same: whoever keeps it sees the job that is run, and a look at it costs no call of the system.
const environment = { ...base };
Object.defineProperty(process, 'env', { value: environment, enumerable: true, configurable: true, writable: true });

function setEnvironment(more) {
  // A script may have put another in its place.
  process.env = environment;
  for (const name in environment) if (!(name in more) && !(name in base)) delete environment[name];
  Object.assign(environment, base, more);
}

const BEGUN = '{"begun":true}\n';
const tell = (message, told) => wire.write(JSON.stringify(message) + '\n', told);

function asText(error) {
  try {
    return String(error instanceof Error ? error.stack || error : error);
  } catch {
    return 'it threw something that has no text';
  }
}

function describe(error) {
  const text = asText(error);
  // The frames below the script are ours, and so is the file that imports for it.
  const isOurs = (line) => /^\s+at .*(runner\.mjs|node:internal)/.test(line);
  const theirs = text.split('\n').filter((line) => !isOurs(line)).join('\n');
  return theirs.replace(/ imported from \S*runner\.mjs/, '').slice(0, RESULT_CHARS_MAX);
}

let text;
let script;

// A job finds all as the first one did, whatever the one before has done to it.
function setUp(env) {
  setEnvironment(env);
  stdin = undefined;
  process.exitCode = undefined;
  if (process.cwd() !== home) process.chdir(home);
}

async function run(env) {
  try {
    setUp(env);
  } catch (error) {
    return { error: describe(error), spoiled: true };
  }
  try {
    if (!script) {
      // Later on it is known that we are here: who has got a job begins it.
      wire.write(BEGUN);
      try {
        script = await compile(text);
      } catch (error) {
        // A module that failed to load stays failed for the life of a process.
        return { error: describe(error), spoiled: true };
      }
    }
    const returned = await script();
    if (Number(process.exitCode ?? 0) !== 0) return { error: `process.exitCode = ${process.exitCode}` };
    return returned === undefined ? {} : { returned: JSON.stringify(returned)?.slice(0, RESULT_CHARS_MAX) };
  } catch (error) {
    if (!(error instanceof Exit)) return { error: describe(error) };
    return error.code === 0 ? {} : { error: `process.exit(${error.code})` };
  }
}

// Jobs that have come and not begun.
const waiting = [];
let isAtWork = false;
let mark;

// By the clock of the machine, as whoever gave us the job reads it.
function micros() {
  const [seconds, nanos] = hrtime();
  return seconds * 1e6 + Math.floor(nanos / 1e3);
}

const giveBack = ({ no }) => tell({ late: no });

// While a job waits for others, those behind it can be given back.
let watching;
function watch() {
  watching ??= setTimeout(() => {
    watching = undefined;
    while (waiting.length > 0 && micros() > waiting[0].by) giveBack(waiting.shift());
    if (waiting.length > 0) watch();
  }, GIVE_BACK_EVERY);
}

// Between what one job writes and what the next does; with its answer, if that is for whoever looks there.
function setMark(line) {
  writeSync(2, mark + '\n');
  writeSync(1, mark + line + '\n');
}

async function work() {
  isAtWork = true;
  for (let job; (job = waiting.shift()); ) {
    const began = micros();
    if (began > job.by) {
      giveBack(job);
      continue;
    }
    const result = await run(job.env);
    const answer = { no: job.no, micros: micros() - began, ...result };
    const line = JSON.stringify(answer);
    const isQuiet = waiting.length > 0 && !answer.spoiled && line.length < QUIET_CHARS_MAX;
    try {
      if (mark) setMark(isQuiet ? line : '');
      if (isQuiet) continue;
    } catch {
      // A script that has closed its output cannot be told from the next.
      answer.spoiled = true;
    }
    // The next one begins when this one's answer is gone: of those that are not answered, only the first has begun.
    const told = new Promise((resolve) => tell(answer, resolve));
    if (wire.writableLength > 0) await told;
    // Nothing more is begun.
    if (answer.spoiled) return;
  }
  isAtWork = false;
}

let unread = [];
wire.setEncoding('utf8');
wire.on('data', (piece) => {
  unread.push(piece);
  if (!piece.endsWith('\n')) return;
  const lines = unread.join('').split('\n').slice(0, -1);
  unread = [];
  for (const line of lines) {
    const message = JSON.parse(line);
    if (message.script === undefined) waiting.push(message);
    else {
      text = message.script;
      mark = message.mark;
    }
  }
  if (!isAtWork) work();
  if (waiting.length > 0) watch();
});
