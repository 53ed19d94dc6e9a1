// A running clinch with stand-ins for its partners, and a browser in front of it. Everything is on loopback and stops by itself.
import { execFile, spawn } from 'node:child_process';
import { appendFile, cp, mkdtemp, readFile, rm, stat, mkdir } from 'node:fs/promises';
import { createServer as createHttp } from 'node:http';
import { createServer as createTcp } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { chromium } from 'playwright-core';

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, '../../../..');
const binary = process.env.CLINCH ?? join(root, 'target/debug/clinch');
export const shots = join(root, 'target/screenshots');
export const DESK = { width: 1280, height: 860 };
export const PHONE = { width: 360, height: 740 };
/// Nothing that is waited for takes this long, unless it never comes.
export const PATIENCE = 60_000;

const listen = server => new Promise(done => server.listen(0, '127.0.0.1', () => done(server.address().port)));

/// What the shop's partners saw. `down`: it answers 503; `mute`: it takes the order and hangs up.
class Partner {
  calls = [];
  mood = 'well';
  server = createHttp((request, response) => {
    let text = '';
    request.on('data', part => { text += part; });
    request.on('end', () => {
      this.calls.push({ path: request.url, key: request.headers['idempotency-key'], body: text, mood: this.mood });
      if (this.mood === 'mute') return request.socket.destroy();
      response.writeHead(this.mood === 'down' ? 503 : 201, { 'content-type': 'application/json' });
      response.end('{"ok":true}');
    });
  });
  taken = path => this.calls.filter(call => call.path === path && call.mood !== 'down');
}

/// Takes mails as a mail server does, and keeps whom they were for.
class Mail {
  sent = [];
  server = createTcp(socket => {
    let to = [], inside = false, rest = '';
    const say = line => socket.write(line + '\r\n');
    say('220 post office');
    socket.on('error', () => {});
    socket.on('data', chunk => {
      rest += chunk;
      for (let end; (end = rest.indexOf('\r\n')) >= 0;) {
        const line = rest.slice(0, end);
        rest = rest.slice(end + 2);
        if (inside) {
          if (line === '.') { inside = false; this.sent.push(to.join()); to = []; say('250 kept'); }
          continue;
        }
        const word = line.slice(0, 4).toUpperCase();
        if (word === 'RCPT') to.push(line.replace(/.*<(.*)>.*/, '$1'));
        if (word === 'DATA') { inside = true; say('354 go on'); } else if (word === 'QUIT') { say('221 bye'); socket.end(); } else say('250 fine');
      }
    });
  });
}

export class World {
  /// `settings` are added to `clinch.yml`.
  static async start(settings = '') {
    const world = new World();
    world.home = await mkdtemp(join(tmpdir(), 'clinch-browser-'));
    world.partner = new Partner();
    world.mail = new Mail();
    const [partner, mail] = [await listen(world.partner.server), await listen(world.mail.server)];
    await cp(join(here, 'workspace'), join(world.home, 'workspace'), { recursive: true });
    await appendFile(join(world.home, 'workspace/clinch.yml'), settings);
    world.env = { ...process.env, PARTNER_URL: `http://127.0.0.1:${partner}`, SMTP_URL: `smtp://127.0.0.1:${mail}`, CLINCH_DATA_DIR: join(world.home, 'data'), NO_COLOR: '1' };
    world.server = spawn(binary, ['serve', '--workspace', join(world.home, 'workspace'), '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0'], { env: world.env, stdio: ['ignore', 'pipe', 'pipe'] });
    world.said = '';
    const ready = new Promise((fine, bad) => {
      const hear = part => { world.said += part; if (/^ready/m.test(world.said)) fine(); };
      world.server.stdout.on('data', hear);
      world.server.stderr.on('data', hear);
      world.server.on('exit', code => bad(new Error(`the server ended with ${code}: ${world.said}`)));
    });
    await ready;
    const card = JSON.parse(await readFile(join(world.home, 'data/server.json'), 'utf8'));
    world.intake = card.intake.replace(/\/$/, '');
    world.url = card.admin.replace(/\/$/, '');
    world.browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'], timeout: PATIENCE });
    return world;
  }

  async stop() {
    await this.browser?.close();
    const gone = new Promise(done => this.server.on('exit', done));
    this.server.kill('SIGTERM');
    await gone;
    this.partner.server.close();
    this.partner.server.closeAllConnections();
    this.mail.server.close();
    await rm(this.home, { recursive: true, force: true });
  }

  /// What a command prints on standard output, as JSON.
  async clinch(...args) {
    const { stdout } = await promisify(execFile)(binary, [...args, '-o', 'json'], { env: this.env });
    return JSON.parse(stdout);
  }

  async send(path, key, body) {
    const answer = await fetch(this.intake + path, { method: 'POST', headers: { 'content-type': 'application/json', 'idempotency-key': key }, body: JSON.stringify(body) });
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return answer.json();
  }

  /// Waits until the job is in this state.
  async job(id, state) {
    return until(async () => {
      const told = await this.clinch('jobs', 'show', id);
      return told.job.state === state && told;
    }, `${id} is ${state}`);
  }

  /// A window of somebody who is logged in with a link that works once.
  async visit({ size = DESK, theme = 'light', script = true, touch = false } = {}) {
    const context = await this.browser.newContext({ viewport: size, colorScheme: theme === 'dark' ? 'dark' : 'light', javaScriptEnabled: script, hasTouch: touch, permissions: script ? ['clipboard-read', 'clipboard-write'] : [] });
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE);
    page.faults = [];
    page.on('console', message => { if (message.type() === 'error') page.faults.push(message.text()); });
    page.on('pageerror', error => page.faults.push(String(error)));
    const { url } = await this.clinch('open');
    await page.goto(url);
    await page.getByRole('button', { name: 'Log in' }).click();
    await page.waitForURL(this.url + '/');
    return page;
  }
}

/// Asks until it is so.
export async function until(ask, what) {
  for (const began = Date.now(); Date.now() - began < 2 * PATIENCE; await pause(50)) {
    const told = await ask();
    if (told) return told;
  }
  throw new Error(`never: ${what}`);
}

/// A picture for people to look at.
export async function shot(page, name) {
  await mkdir(shots, { recursive: true });
  await page.screenshot({ path: join(shots, `${name}.png`), fullPage: false });
  if ((await stat(join(shots, `${name}.png`))).size < 1000) throw new Error(`${name} shows nothing`);
}

/// Goes from one thing to the next with the tab key until this one has the focus.
export async function tabTo(page, target) {
  for (let presses = 0; presses < 200; presses++) {
    if (await target.evaluate(element => element === document.activeElement).catch(() => false)) return;
    await page.keyboard.press('Tab');
  }
  throw new Error('it cannot be reached with the tab key');
}

/// Keeps a finger on it until it is taken, as what is not meant by every touch asks for on a phone.
export async function hold(page, target) {
  await target.scrollIntoViewIfNeeded();
  // A scroll that is told after the finger is down lets go of it.
  await page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
  const { x, y, width, height } = await target.boundingBox();
  await page.mouse.move(x + width / 2, y + height / 2);
  const taken = page.waitForRequest(request => request.method() === 'POST');
  await page.mouse.down();
  await taken;
  await page.mouse.up();
}
