// What people do in the console, each by hand and by keyboard alone.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { PHONE, World, shot, tabTo, until } from './world.mjs';

let world;
before(async () => { world = await World.start(); });
after(async () => { await world?.stop(); });

const state = page => page.locator('h1 .state');
/// Types into what is reached with the tab key, as somebody without a mouse does.
async function typeInto(page, target, text) {
  await tabTo(page, target);
  await page.keyboard.type(text);
}
async function press(page, target) {
  await tabTo(page, target);
  await page.keyboard.press('Enter');
}

describe('i1 a job is found from the address of a customer, and tells whether the mail went out', () => {
  test('by hand', async () => {
    const { job_id } = await world.send('/signup', 'find-1', { email: 'rosa@customer.example' });
    await world.job(job_id, 'success');
    const page = await world.visit();
    await page.getByRole('searchbox', { name: 'Find' }).fill('rosa@customer.example');
    await page.keyboard.press('Enter');
    await page.waitForURL(url => url.pathname === `/jobs/${job_id}`);
    const ledger = page.getByRole('region', { name: 'Effects' });
    await ledger.getByRole('row', { name: /welcome.*done/ }).waitFor();
    assert.deepEqual(world.mail.sent.filter(to => to === 'rosa@customer.example').length, 1);
    assert.ok(!(await page.content()).includes('rosa@customer.example'), 'the address is masked');
    await shot(page, 'job');
    assert.deepEqual(page.faults, []);
  });

  test('by keyboard', async () => {
    const { job_id } = await world.send('/signup', 'find-2', { email: 'omar@customer.example' });
    await world.job(job_id, 'success');
    const page = await world.visit();
    await page.keyboard.press('/');
    await page.keyboard.type('omar@customer.example');
    await page.keyboard.press('Enter');
    await page.waitForURL(url => url.pathname === `/jobs/${job_id}`);
    await page.keyboard.press('g');
    await page.keyboard.press('j');
    await page.waitForURL(url => url.pathname === '/jobs');
    await page.keyboard.press('j');
    await page.keyboard.press('o');
    await page.waitForURL(url => url.pathname === `/jobs/${job_id}`);
  });
});

describe('f2 a dead letter is read, the partner is mended, and its group is replayed with a plan', () => {
  async function die(keys) {
    world.partner.mood = 'down';
    const jobs = [];
    for (const key of keys) jobs.push((await world.send('/signup', key, { email: `${key}@customer.example` })).job_id);
    for (const job of jobs) await world.job(job, 'dead');
    world.partner.mood = 'well';
    return jobs;
  }
  const watched = async page => {
    await page.waitForURL(url => /^\/replays\/rpl_/.test(url.pathname));
    await page.getByText('done', { exact: true }).first().waitFor({ timeout: 30_000 });
  };

  test('by hand', async () => {
    const jobs = await die(['dead-1', 'dead-2', 'dead-3']);
    const page = await world.visit();
    await page.getByRole('link', { name: /Dead letters/ }).first().click();
    await page.getByRole('link', { name: jobs[0] }).or(page.getByRole('link', { name: jobs[2] })).first().click();
    assert.match(await state(page).innerText(), /dead/);
    await page.goBack();
    await shot(page, 'dead');
    await page.getByRole('link', { name: /Plan replay/ }).first().click();
    await page.getByRole('textbox', { name: /Why/ }).fill('the CRM is back, INC-482');
    await page.getByRole('button', { name: /Count/ }).click();
    await page.waitForURL(url => /^\/replays\/rpl_/.test(url.pathname));
    await page.getByText(/will run/i).first().waitFor();
    await shot(page, 'replay-plan');
    await page.getByRole('textbox', { name: /Why/ }).fill('the CRM is back, INC-482');
    await page.getByRole('button', { name: /^Start/ }).click();
    await watched(page);
    for (const job of jobs) await world.job(job, 'success');
    for (const key of ['dead-1', 'dead-2', 'dead-3']) {
      assert.equal(world.mail.sent.filter(to => to === `${key}@customer.example`).length, 1);
    }
    assert.deepEqual(page.faults, []);
  });

  test('by keyboard', async () => {
    const jobs = await die(['dead-4', 'dead-5']);
    const page = await world.visit();
    await page.keyboard.press('g');
    await page.keyboard.press('d');
    await page.waitForURL(url => url.pathname === '/dead');
    await press(page, page.getByRole('link', { name: /Plan replay/ }).first());
    await typeInto(page, page.getByRole('textbox', { name: /Why/ }), 'mended');
    await press(page, page.getByRole('button', { name: /Count/ }));
    await page.waitForURL(url => /^\/replays\/rpl_/.test(url.pathname));
    await typeInto(page, page.getByRole('textbox', { name: /Why/ }), 'mended');
    await press(page, page.getByRole('button', { name: /^Start/ }));
    await watched(page);
    for (const job of jobs) await world.job(job, 'success');
  });
});

describe('d2 an effect of unknown outcome is resolved by a person', () => {
  async function lose(key) {
    world.partner.mood = 'mute';
    const { job_id } = await world.send('/charge', key, { amount: 12 });
    await world.job(job_id, 'dead');
    world.partner.mood = 'well';
    return job_id;
  }

  test('by hand', async () => {
    const job = await lose('charge-1');
    const page = await world.visit();
    await page.goto(`${world.url}/jobs/${job}`);
    await page.getByRole('region', { name: 'Effects' }).getByRole('link', { name: /Resolve/ }).click();
    await shot(page, 'effect');
    await page.getByRole('radio', { name: /^Done/ }).check();
    await page.getByRole('textbox', { name: /proof|know/i }).fill('statement of today, line 7');
    await page.getByRole('textbox', { name: /Why/ }).fill('asked the bank');
    await page.getByRole('textbox', { name: /name of the step/i }).fill('take');
    await page.getByRole('button', { name: /Resolve/ }).click();
    const told = await until(async () => {
      const now = await world.clinch('effects', 'show', `${job}/take`);
      return now.effect.state === 'done' && now;
    }, 'it is resolved');
    assert.equal(told.effect.state, 'done');
    assert.equal(world.partner.taken('/charges').length, 1, 'nothing was sent again');
    assert.deepEqual(page.faults, []);
  });

  test('by keyboard', async () => {
    const job = await lose('charge-2');
    const page = await world.visit();
    await page.goto(`${world.url}/jobs/${job}`);
    await press(page, page.getByRole('region', { name: 'Effects' }).getByRole('link', { name: /Resolve/ }));
    await tabTo(page, page.getByRole('radio', { name: /^Done/ }).or(page.getByRole('radio').first()).first());
    await page.keyboard.press('Space');
    await typeInto(page, page.getByRole('textbox', { name: /proof|know/i }), 'statement, line 8');
    await typeInto(page, page.getByRole('textbox', { name: /Why/ }), 'asked the bank');
    await typeInto(page, page.getByRole('textbox', { name: /name of the step/i }), 'take');
    await press(page, page.getByRole('button', { name: /Resolve/ }));
    await until(async () => (await world.clinch('effects', 'show', `${job}/take`)).effect.state === 'done', 'it is resolved');
  });
});

describe('g2 fifty sends are approved at once', () => {
  async function ask(from, to) {
    for (let n = from; n < to; n++) await world.send('/winback', `winback-${n}`, { customer: `c-${n}`, email: `c${n}@customer.example` });
    await until(async () => (await world.clinch('approve', 'ls')).approvals.length === to - from, `${to - from} wait`);
  }
  const sent = (from, to) => world.mail.sent.filter(mail => { const n = Number(/^c(\d+)@/.exec(mail)?.[1] ?? -1); return n >= from && n < to; }).length;

  test('by hand', async () => {
    await ask(0, 50);
    const page = await world.visit();
    await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: /Approvals/ }).click();
    await page.getByRole('checkbox', { name: /Select all/ }).first().check();
    await page.getByRole('textbox', { name: /Why/ }).fill('list was checked');
    await shot(page, 'approvals');
    await page.getByRole('button', { name: /^Approve/ }).click();
    await until(() => sent(0, 50) === 50, 'fifty mails went out');
    assert.deepEqual(page.faults, []);
  });

  test('by keyboard', async () => {
    await ask(50, 55);
    const page = await world.visit();
    await page.keyboard.press('g');
    await page.keyboard.press('a');
    await page.waitForURL(url => url.pathname === '/approvals');
    await tabTo(page, page.getByRole('checkbox', { name: /Select all/ }).first());
    await page.keyboard.press('Space');
    await typeInto(page, page.getByRole('textbox', { name: /Why/ }), 'list was checked');
    await press(page, page.getByRole('button', { name: /^Approve/ }));
    await until(() => sent(50, 55) === 5, 'five mails went out');
  });
});

describe('e4 everything is stopped from a phone, and started again', () => {
  async function stopped(act) {
    const { job_id } = await world.send('/signup', act, { email: `${act}@customer.example` });
    await world.job(job_id, 'waiting');
    assert.equal(world.mail.sent.filter(to => to === `${act}@customer.example`).length, 0);
    return job_id;
  }

  test('by hand', async () => {
    const page = await world.visit({ size: PHONE, touch: true });
    await shot(page, 'phone-overview');
    await page.getByRole('navigation', { name: 'Quick' }).getByRole('link', { name: 'Stop' }).tap();
    await page.getByRole('textbox', { name: /Why/ }).fill('wrong price in campaign 118');
    await shot(page, 'phone-safe-mode');
    await page.getByRole('button', { name: /Turn on safe mode/ }).tap();
    await page.getByRole('alert').getByText('Safe mode is on').waitFor();
    const job = await stopped('stop-1');
    await page.getByRole('textbox', { name: /Why/ }).fill('price is right again');
    await page.getByRole('button', { name: /Turn off safe mode/ }).tap();
    await page.getByRole('status').getByText('Safe mode is off').waitFor();
    await world.job(job, 'success');
    assert.equal(world.mail.sent.filter(to => to === 'stop-1@customer.example').length, 1);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= PHONE.width, `the page is ${wide} wide`);
    assert.deepEqual(page.faults, []);
  });

  test('by keyboard, and without a script', async () => {
    const page = await world.visit({ size: PHONE, script: false });
    await press(page, page.getByRole('navigation', { name: 'Quick' }).getByRole('link', { name: 'Stop' }));
    await typeInto(page, page.getByRole('textbox', { name: /Why/ }), 'wrong price');
    await press(page, page.getByRole('button', { name: /Turn on safe mode/ }));
    await page.getByRole('alert').getByText('Safe mode is on').waitFor();
    const job = await stopped('stop-2');
    await typeInto(page, page.getByRole('textbox', { name: /Why/ }), 'right again');
    await press(page, page.getByRole('button', { name: /Turn off safe mode/ }));
    await world.job(job, 'success');
  });
});
