// Keys, live numbers and small comforts. Without it every page reads and every form works.
'use strict';
(() => {
  const policy = window.trustedTypes ? trustedTypes.createPolicy('clinch', { createHTML: text => text }) : { createHTML: text => text };
  const $ = (what, within = document) => within.querySelector(what);
  const $$ = (what, within = document) => [...within.querySelectorAll(what)];
  const typing = target => target.closest('input, select, textarea, [contenteditable]');

  // Live: a beat from the server, then the page is asked for again and only what is marked is replaced.
  const pulse = $('#pulse');
  let source = null, paused = false, asking = false, last = 0;
  const say = word => { if (pulse) { pulse.hidden = false; pulse.textContent = word; } };
  const busy = () => document.hidden || paused || $('dialog[open]') || (document.activeElement && document.activeElement.closest('[data-live] form'))
    || $('[data-live] input:checked');
  async function refresh() {
    if (asking || busy() || !$('[data-live], [data-rows]') || 'still' in document.body.dataset) return;
    asking = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: 'text/html' }, redirect: 'error' });
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(policy.createHTML(await answer.text()), 'text/html');
      if (busy()) return;
      const at = rowAt();
      for (const old of $$('[data-live]')) {
        const now = fresh.getElementById(old.id);
        for (const box of $$('details[id][open]', old)) { const same = fresh.getElementById(box.id); if (same) same.open = true; }
        if (now && now.innerHTML !== old.innerHTML) {
          const focused = document.activeElement && old.contains(document.activeElement) && document.activeElement.id;
          old.replaceChildren(...now.childNodes);
          if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
        }
      }
      $$('[data-rows]').forEach(old => keepOrder(old, fresh.getElementById(old.id)));
      if (at) { const row = document.getElementById(at); if (row) mark(row, false); }
      last = Date.now();
    } catch { say('behind'); } finally { asking = false; }
  }
  // Rows change where they are and never move under the cursor; of new ones only the number is told.
  function keepOrder(old, now) {
    if (!now) return;
    let added = 0;
    for (const row of [...now.rows]) {
      const mine = document.getElementById(row.id);
      if (!mine) added += 1;
      else if (mine.innerHTML !== row.innerHTML && !mine.contains(document.activeElement) && !$('input:checked', mine)) mine.replaceChildren(...row.childNodes);
    }
    const note = document.getElementById(old.dataset.rows);
    if (note) { note.hidden = !added; $('b', note).textContent = `${added} new`; }
  }
  function listen() {
    if (!window.EventSource || !pulse) return;
    source = new EventSource('/live');
    source.addEventListener('pulse', event => {
      const now = JSON.parse(event.data);
      const count = $('#nav-dead');
      if (count) count.textContent = now.dead.toLocaleString('en');
      say('live'); refresh();
    });
    source.onerror = () => say(last ? `behind ${Math.round((Date.now() - last) / 1000)} s` : 'not live');
  }
  const toggle = () => { paused = !paused; if (paused) { source && source.close(); source = null; say('paused'); } else listen(); };
  document.addEventListener('visibilitychange', () => { if (document.hidden) { source && source.close(); source = null; } else if (!paused && !source) listen(); });
  listen();

  // Rows.
  const rows = () => $$('tr[data-href]');
  const rowAt = () => { const row = $('tr.at'); return row && row.id; };
  function mark(row, scroll = true) {
    rows().forEach(other => other.classList.remove('at'));
    row.classList.add('at');
    if (scroll) row.scrollIntoView({ block: 'nearest' });
    const link = $('a', row); if (link && scroll) link.focus({ preventScroll: true });
  }
  function step(by) {
    const all = rows(); if (!all.length) return;
    const now = all.findIndex(row => row.classList.contains('at'));
    mark(all[Math.max(0, Math.min(all.length - 1, now + by))]);
  }
  const current = () => $('tr.at');

  // The list that one comes from: its jobs before and after the one that is open.
  const listed = rows().map(row => row.dataset.href).filter(href => href.startsWith('/jobs/job_'));
  if (listed.length && !$('#older')) sessionStorage.setItem('clinch-list', JSON.stringify(listed));
  const walk = JSON.parse(sessionStorage.getItem('clinch-list') || '[]'), place = walk.indexOf(location.pathname);
  if (place >= 0) for (const [id, to] of [['newer', walk[place - 1]], ['older', walk[place + 1]]]) {
    const link = document.getElementById(id);
    if (link && to) { link.href = to; link.hidden = false; }
  }

  async function copy(text) {
    try { await navigator.clipboard.writeText(text); } catch {
      const box = document.createElement('textarea'); box.value = text; document.body.append(box); box.select(); document.execCommand('copy'); box.remove();
    }
    say('copied');
  }
  document.addEventListener('click', event => {
    const button = event.target.closest('[data-copy]');
    if (button) { event.preventDefault(); copy(button.dataset.copy); }
    const all = event.target.closest('[data-check]');
    if (all) $$(`input[name="${all.dataset.check}"]`, all.closest('form')).forEach(box => { box.checked = all.checked; });
    const opener = event.target.closest('[data-open]');
    if (opener) { const box = document.getElementById(opener.dataset.open); if (box && box.showModal) { event.preventDefault(); box.showModal(); } }
  });

  // How many are chosen stands on the button.
  function count() {
    for (const button of $$('[data-count]')) {
      const chosen = $$(`input[name="${button.dataset.count}"]:checked`, button.form).length;
      button.textContent = chosen ? `${button.dataset.word} ${chosen}…` : `${button.dataset.word}…`;
    }
  }
  document.addEventListener('change', count); document.addEventListener('click', event => { if (event.target.closest('[data-check]')) count(); });
  count();

  // On a small screen what has consequences is held down, not tapped: a thumb slips. A keyboard presses it as ever.
  const small = matchMedia('(max-width: 46rem)');
  document.documentElement.dataset.script = '';
  let holding = 0;
  const release = () => { clearTimeout(holding); $$('.holding').forEach(button => button.classList.remove('holding')); };
  document.addEventListener('pointerdown', event => {
    const button = event.target.closest('[data-hold]');
    if (!button || !small.matches) return;
    button.classList.add('holding');
    holding = setTimeout(() => { release(); button.form.requestSubmit(button); }, 700);
  });
  for (const end of ['pointerup', 'pointercancel', 'scroll']) document.addEventListener(end, release, true);
  document.addEventListener('click', event => {
    if (small.matches && event.detail > 0 && event.target.closest('[data-hold]')) { event.preventDefault(); say('hold the button'); }
  }, true);

  // The theme changes where one is.
  const theme = $('#theme');
  if (theme) theme.addEventListener('submit', async event => {
    event.preventDefault();
    await fetch(theme.action, { method: 'POST', body: new URLSearchParams(new FormData(theme)), redirect: 'manual' });
    location.reload();
  });
  const keys = $('#keys-on');
  if (keys) {
    $('#keys-setting').hidden = false;
    keys.checked = localStorage.getItem('clinch-keys') !== 'off';
    keys.addEventListener('change', () => localStorage.setItem('clinch-keys', keys.checked ? 'on' : 'off'));
  }

  // Keys. They can be switched off in the settings, for those whose tools type letters.
  let going = 0;
  const off = () => localStorage.getItem('clinch-keys') === 'off';
  document.addEventListener('keydown', event => {
    if ((event.ctrlKey || event.metaKey) && event.key === 'k') { event.preventDefault(); $('#find')?.focus(); return; }
    if (off() || event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || $('dialog[open]')) return;
    if (Date.now() - going < 1500) {
      going = 0;
      const link = $(`[data-go="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); return; }
    }
    const named = $(`[data-press="${CSS.escape(event.key)}"]`);
    if (named) { event.preventDefault(); named.click(); return; }
    const does = {
      '/': () => $('#find')?.focus(), 'g': () => { going = Date.now(); }, 'j': () => step(1), 'k': () => step(-1),
      'ArrowDown': () => current() && step(1), 'ArrowUp': () => current() && step(-1),
      'o': () => current() && (location.href = current().dataset.href),
      'x': () => { const box = current() && $('input[type=checkbox]', current()); if (box) { box.checked = !box.checked; box.dispatchEvent(new Event('change', { bubbles: true })); } },
      'c': () => { const id = current()?.dataset.id || $('main [data-id]')?.dataset.id; if (id) copy(id); },
      '.': toggle, '?': () => $('#help')?.showModal(), 't': () => $('#theme-next')?.click(),
    }[event.key];
    if (does) { if (!event.key.startsWith('Arrow') || current()) event.preventDefault(); does(); }
  });
})();
