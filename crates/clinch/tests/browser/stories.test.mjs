// What people do in the console, each by hand and by keyboard alone.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { PHONE, World, hold, shot, tabTo, until } from './world.mjs';

let world;
before(async () => { world = await World.start(); });
after(async () => { await world?.stop(); });

const state = page => page.locator('h1 .state');
const why = page => page.getByRole('textbox', { name: /^(Why|What for)/ });
/// Types into what is reached with the tab key, as somebody without a mouse does.
async function typeInto(page, target, text) {
  await tabTo(page, target);
  await page.keyboard.type(text);
}
async function press(page, target) {
  await tabTo(page, target);
  await page.keyboard.press('Enter');
}
/// Goes to a page with two letters. The second counts if it comes soon after the first; else both are typed again.
const go = (page, letter, path) => until(async () => {
  await page.keyboard.press('g');
  await page.keyboard.press(letter);
  return page.waitForURL(url => url.pathname === path, { timeout: 15_000 }).then(() => true, () => false);
}, path);

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
    await go(page, 'j', '/jobs');
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
  const planned = page => page.waitForURL(url => /^\/replays\/rpl_/.test(url.pathname));
  // The page is not loaded again: it hears of it.
  const watched = page => page.getByRole('heading', { level: 1, name: /done/ }).waitFor();

  test('by hand', async () => {
    const jobs = await die(['dead-1', 'dead-2', 'dead-3']);
    const page = await world.visit();
    await page.getByRole('link', { name: /Dead letters/ }).first().click();
    await page.getByRole('link', { name: jobs[0] }).or(page.getByRole('link', { name: jobs[2] })).first().click();
    assert.match(await state(page).innerText(), /dead/);
    await page.goBack();
    await shot(page, 'dead');
    await page.getByRole('link', { name: /Plan replay/ }).first().click();
    await why(page).fill('the CRM is back, INC-482');
    await page.getByRole('button', { name: /Count/ }).click();
    await planned(page);
    await page.getByText(/will run/i).first().waitFor();
    await shot(page, 'replay-plan');
    await why(page).fill('the CRM is back, INC-482');
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
    await go(page, 'd', '/dead');
    await press(page, page.getByRole('link', { name: /Plan replay/ }).first());
    await typeInto(page, why(page), 'mended');
    await press(page, page.getByRole('button', { name: /Count/ }));
    await planned(page);
    await typeInto(page, why(page), 'mended');
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
    await page.getByRole('link', { name: /Resolve take/ }).first().click();
    await shot(page, 'effect');
    await page.getByRole('radio', { name: /It was done/ }).check();
    await page.getByRole('textbox', { name: 'How you know' }).fill('statement of today, line 7');
    await why(page).fill('asked the bank');
    await page.getByRole('textbox', { name: /Type the step's name/ }).fill('take');
    await page.getByRole('button', { name: 'Give your word' }).click();
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
    await press(page, page.getByRole('link', { name: /Resolve take/ }).first());
    await tabTo(page, page.getByRole('radio', { name: /It was done/ }));
    await page.keyboard.press('Space');
    await typeInto(page, page.getByRole('textbox', { name: 'How you know' }), 'statement, line 8');
    await typeInto(page, why(page), 'asked the bank');
    await typeInto(page, page.getByRole('textbox', { name: /Type the step's name/ }), 'take');
    await press(page, page.getByRole('button', { name: 'Give your word' }));
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
    await page.getByRole('checkbox', { name: 'All 50' }).check();
    await shot(page, 'approvals');
    await page.getByRole('button', { name: 'Approve 50' }).click();
    await page.getByRole('heading', { name: 'Approve 50?' }).waitFor();
    await why(page).fill('list was checked');
    await page.getByRole('button', { name: 'Approve 50' }).click();
    // A slip is taken back within the time, and nothing has happened.
    await page.getByRole('button', { name: /Undo/ }).click();
    await until(async () => (await world.clinch('approve', 'ls')).approvals.length === 50, 'all wait again');
    assert.equal(sent(0, 50), 0);
    await page.goto(`${world.url}/approvals`);
    await page.getByRole('checkbox', { name: 'All 50' }).check();
    await page.getByRole('button', { name: 'Approve 50' }).click();
    await why(page).fill('list was checked');
    await page.getByRole('button', { name: 'Approve 50' }).click();
    await until(() => sent(0, 50) === 50, 'fifty mails went out');
    assert.deepEqual(page.faults, []);
  });

  test('by keyboard', async () => {
    await ask(50, 55);
    const page = await world.visit();
    await go(page, 'a', '/approvals');
    await tabTo(page, page.getByRole('checkbox', { name: 'All 5' }));
    await page.keyboard.press('Space');
    await press(page, page.getByRole('button', { name: 'Approve 5' }));
    await page.getByRole('heading', { name: 'Approve 5?' }).waitFor();
    await typeInto(page, why(page), 'list was checked');
    await press(page, page.getByRole('button', { name: 'Approve 5' }));
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
    await why(page).fill('wrong price in campaign 118');
    await shot(page, 'phone-safe-mode');
    await hold(page, page.getByRole('button', { name: 'Turn on safe mode' }));
    await page.getByRole('alert').getByText('Safe mode is on').waitFor();
    const job = await stopped('stop-1');
    await why(page).fill('price is right again');
    await hold(page, page.getByRole('button', { name: 'Turn off safe mode' }));
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
    await typeInto(page, why(page), 'wrong price');
    await press(page, page.getByRole('button', { name: /Turn on safe mode/ }));
    await page.getByRole('alert').getByText('Safe mode is on').waitFor();
    const job = await stopped('stop-2');
    await typeInto(page, why(page), 'right again');
    await press(page, page.getByRole('button', { name: /Turn off safe mode/ }));
    await world.job(job, 'success');
  });
});
