// Every page, in light and dark, on a desk and on a phone: nothing keeps people out, nothing is wider than the window, and
// what the network has to carry is small.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { DESK, PHONE, World, shot } from './world.mjs';

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
let world, paths;
before(async () => {
  world = await World.start();
  world.partner.mood = 'down';
  const dead = await world.send('/signup', 'p-1', { email: 'ada@customer.example', note: '<img src=x onerror=alert(1)>' });
  await world.job(dead.job_id, 'dead');
  world.partner.mood = 'mute';
  const lost = await world.send('/charge', 'p-2', { amount: 3 });
  await world.job(lost.job_id, 'dead');
  world.partner.mood = 'well';
  const fine = await world.send('/signup', 'p-3', { email: 'eve@customer.example' });
  await world.job(fine.job_id, 'success');
  await world.send('/winback', 'p-4', { customer: 'c-1', email: 'c1@customer.example' });
  await world.clinch('pause', 'queue:charges', '--reason', 'looking into it');
  const { plan } = await world.clinch('replay', 'plan', 'flow:signup', '--reason', 'CRM is back');
  paths = {
    overview: '/', alerts: '/alerts', runbooks: '/runbooks', runbook: '/runbooks/ClinchCircuitOpen', jobs: '/jobs', job: `/jobs/${fine.job_id}`, 'job-dead': `/jobs/${dead.job_id}`, events: '/events', dead: '/dead',
    replays: '/replays', 'replay-new': '/replays/new?q=flow:signup', replay: `/replays/${plan.id}`, effects: '/effects', effect: `/effects/${lost.job_id}/take`,
    approvals: '/approvals', integrations: '/integrations', flows: '/flows', flow: '/flows/signup', keys: '/keys?k=p-1', audit: '/audit', settings: '/settings',
    'safe-mode': '/safe-mode', pauses: '/pauses', 'not-found': '/nothing-here',
  };
});
after(async () => { await world?.stop(); });

for (const [theme, size, kind] of [['light', DESK, 'desk'], ['dark', DESK, 'desk'], ['light', PHONE, 'phone'], ['dark', PHONE, 'phone']]) {
  test(`i1 every page can be used by everybody: ${theme}, ${kind}`, async () => {
    const page = await world.visit({ size, theme });
    const found = [];
    for (const [name, path] of Object.entries(paths)) {
      const answer = await page.goto(world.url + path);
      assert.equal(answer.status(), name === 'not-found' ? 404 : 200, path);
      await page.evaluate(axe);
      const told = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
      for (const fault of told.violations.filter(fault => ['serious', 'critical'].includes(fault.impact))) {
        found.push(`${path}: ${fault.id}: ${fault.nodes.map(node => node.html.slice(0, 120)).slice(0, 3).join(' | ')}`);
      }
      if ((await page.content()).includes('ada@customer.example')) found.push(`${path} shows an address`);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      if (wide > size.width) found.push(`${path} is ${wide} wide in a window of ${size.width}`);
      await shot(page, `${name}-${theme}-${kind}`);
    }
    assert.deepEqual(found, []);
    assert.deepEqual(page.faults.filter(fault => !/404/.test(fault)), []);
  });
}

test('i1 the first view is small', async () => {
  const page = await world.visit();
  const fresh = await page.context().newPage();
  const bodies = [];
  fresh.on('response', answer => { if (!answer.url().endsWith('/live')) bodies.push(answer.body()); });
  await fresh.goto(world.url, { waitUntil: 'load' });
  const bytes = (await Promise.all(bodies)).reduce((sum, body) => sum + gzipSync(body).length, 0);
  assert.ok(bodies.length >= 3, 'page, style and script');
  assert.ok(bytes < 60_000, `${bytes} bytes`);
});

test('t_098 what senders write is shown as text', async () => {
  const page = await world.visit();
  const asked = [];
  page.on('dialog', dialog => { asked.push(dialog.message()); dialog.dismiss(); });
  for (const path of [paths['job-dead'], paths.keys, paths.dead, paths.events]) await page.goto(world.url + path);
  assert.deepEqual(asked, []);
  assert.deepEqual(page.faults, []);
});
