-- Every table is written at its right edge: ids grow with time, and what is settled soon is still on a warm page.

CREATE TABLE fact (name TEXT PRIMARY KEY, value ANY NOT NULL) WITHOUT ROWID, STRICT;

-- One row per key that something is sealed with (`key_…`: recognises it, and tells nothing of it); `all_sealed` where nothing
-- is from before encryption.
CREATE TABLE secret (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID, STRICT;

-- Names of sources, flows and queues, so that rows hold small numbers.
CREATE TABLE name (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT;

-- Workspaces that were live: a job runs the one it was accepted with.
CREATE TABLE version (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, files TEXT NOT NULL, at INTEGER NOT NULL) STRICT;

-- How far the moments are taken at which an integration may be called.
CREATE TABLE pace (name TEXT PRIMARY KEY, last INTEGER NOT NULL) WITHOUT ROWID, STRICT;

-- Schedules: the slot that was used up last, and the job of the last run.
CREATE TABLE schedule (name TEXT PRIMARY KEY, last INTEGER NOT NULL, job INTEGER) WITHOUT ROWID, STRICT;

-- Keys that steps have set, and when they may be set again.
CREATE TABLE once (key BLOB PRIMARY KEY, until INTEGER NOT NULL) WITHOUT ROWID, STRICT;
CREATE INDEX once_until ON once (until);

-- Calls that were made for others under their keys. state: 0 open (until `until`), 1 done, 2 unknown.
CREATE TABLE call (
    key BLOB PRIMARY KEY,
    fingerprint BLOB NOT NULL,
    turn INTEGER NOT NULL,
    state INTEGER NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    answer BLOB
) STRICT;
CREATE INDEX call_expires ON call (expires);

-- What entities have used of their retry budgets; an entity is a hash under the pepper. `units` in `lasts` are allowed.
-- Nothing is left before `free_at`, if that is not 0; from `over_at` on the row says nothing any more.
CREATE TABLE budget (
    budget TEXT NOT NULL,
    entity BLOB NOT NULL,
    since INTEGER NOT NULL,
    spent INTEGER NOT NULL,
    extra INTEGER NOT NULL,
    units INTEGER NOT NULL,
    lasts INTEGER NOT NULL,
    free_at INTEGER NOT NULL,
    over_at INTEGER NOT NULL,
    PRIMARY KEY (budget, entity)
) WITHOUT ROWID, STRICT;
CREATE INDEX budget_over ON budget (over_at);
CREATE INDEX budget_exhausted ON budget (free_at, budget) WHERE free_at > 0;

-- What was done, or is about to be, to contacts that a policy counts: a contact is a hash under the pepper, in the scope of its
-- policy. From `until` on the row counts nowhere any more.
CREATE TABLE admission (
    job INTEGER NOT NULL,
    step TEXT NOT NULL,
    contact BLOB NOT NULL,
    channel TEXT NOT NULL,
    at INTEGER NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (job, step, contact)
) WITHOUT ROWID, STRICT;
CREATE INDEX admission_contact ON admission (contact, at);
CREATE INDEX admission_until ON admission (until);

-- Immutable, but for a payload that is sealed again or erased. The jobs of event n are n+1 … n+jobs.
CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    source INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    key BLOB,
    fingerprint BLOB,
    expires_at INTEGER NOT NULL,
    status INTEGER NOT NULL,
    jobs INTEGER NOT NULL,
    trace BLOB NOT NULL,
    payload BLOB NOT NULL
) STRICT;

-- ord: 0 any, 1 in order within its lane, 2 likewise and nobody passes it when it is dead.
-- state: 0 ready, 1 success, 2 noop, 3 dead, 6 dropped. A lease of this engine ends with its process, so running is not written.
CREATE TABLE job (
    id INTEGER PRIMARY KEY,
    event INTEGER NOT NULL,
    flow INTEGER NOT NULL,
    queue INTEGER NOT NULL,
    version INTEGER NOT NULL,
    state INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    ord INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    replays INTEGER NOT NULL DEFAULT 0,
    first_attempt_at INTEGER,
    ended_at INTEGER,
    reason INTEGER
) STRICT;
CREATE INDEX job_dead ON job (id) WHERE state = 3;
-- The oldest dead letter of a flow is at its beginning, however many there are.
CREATE INDEX job_dead_since ON job (flow, ended_at) WHERE state = 3;
CREATE INDEX job_dropped ON job (id) WHERE state = 6;
CREATE INDEX job_blocking ON job (id) WHERE state = 3 AND ord = 2;

-- Attempts that ended, except a first one that did it all: the row of its job tells that.
CREATE TABLE attempt (
    job INTEGER NOT NULL,
    no INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    reason INTEGER,
    error BLOB,
    PRIMARY KEY (job, no)
) WITHOUT ROWID, STRICT;

-- The ledger. state: 0 open, 1 done, 2 not done, 3 unknown, 4 given up: then `status` is the number of the reason.
CREATE TABLE effect (
    job INTEGER NOT NULL,
    name TEXT NOT NULL,
    class INTEGER NOT NULL,
    state INTEGER NOT NULL,
    first_intended_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    sends INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    status INTEGER,
    body BLOB,
    PRIMARY KEY (job, name)
) WITHOUT ROWID, STRICT;

-- People look for what is unknown. Only such rows are in it: to write the others costs nothing more.
CREATE INDEX effect_unknown ON effect (job, name) WHERE state = 3;

-- What workers learned of something they sent after their job was another's: evidence, which changes no state.
-- state: as in the ledger, and never 0.
CREATE TABLE late_answer (
    job INTEGER NOT NULL,
    name TEXT NOT NULL,
    fence INTEGER NOT NULL,
    at INTEGER NOT NULL,
    state INTEGER NOT NULL,
    status INTEGER,
    body BLOB,
    PRIMARY KEY (job, name, fence)
) WITHOUT ROWID, STRICT;

-- Later deliveries under the key of an event. kind: 0 duplicate, 1 conflict. The last row counts what came after it.
CREATE TABLE delivery (
    event INTEGER NOT NULL,
    no INTEGER NOT NULL,
    at INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    times INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (event, no)
) WITHOUT ROWID, STRICT;

-- By what events are found: keyed hashes of what `find_by` names in them.
CREATE TABLE handle (event INTEGER NOT NULL, mark INTEGER NOT NULL, PRIMARY KEY (event, mark)) WITHOUT ROWID, STRICT;
CREATE INDEX handle_mark ON handle (mark, event);

-- Who did what, from where and why. Each row is chained to the one before it by its hash; where the chain ends is a fact of
-- its own (`audit_rows`, `audit_hash`), so that a tail that is missing is missed.
CREATE TABLE audit (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    origin TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT NOT NULL,
    job INTEGER,
    before TEXT,
    after TEXT,
    reason TEXT NOT NULL,
    hash BLOB NOT NULL
) STRICT;
CREATE INDEX audit_job ON audit (job) WHERE job IS NOT NULL;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN SELECT raise(ABORT, 'the audit is only added to'); END;
CREATE TRIGGER audit_is_not_removed BEFORE DELETE ON audit BEGIN SELECT raise(ABORT, 'the audit is only added to'); END;
INSERT INTO fact (name, value) VALUES ('audit_rows', 0), ('audit_hash', zeroblob(32)), ('live_version', 0), ('live_chosen', 0);

-- Users. password: an argon2id string. identity: the digest of who a provider says that it is.
CREATE TABLE person (
    name TEXT PRIMARY KEY,
    added_at INTEGER NOT NULL,
    role TEXT NOT NULL,
    password TEXT,
    identity BLOB UNIQUE
) WITHOUT ROWID, STRICT;

-- Their tokens, of which only the digest is kept. role: that of the user, where there is none.
CREATE TABLE person_token (
    digest BLOB PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    person TEXT NOT NULL,
    made_at INTEGER NOT NULL,
    expires_at INTEGER,
    used_at INTEGER,
    role TEXT,
    source TEXT
) WITHOUT ROWID, STRICT;

-- Who is logged in, and the links that log somebody in once: digests again. person: a user, or admin.
CREATE TABLE session (
    digest BLOB PRIMARY KEY,
    person TEXT NOT NULL,
    role TEXT NOT NULL,
    made_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID, STRICT;

CREATE TABLE login_link (
    digest BLOB PRIMARY KEY,
    person TEXT NOT NULL,
    role TEXT NOT NULL,
    made_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID, STRICT;

-- Keys of events up to last_event, in sorted runs that are never changed, only dropped whole.
CREATE TABLE key_run (
    id INTEGER PRIMARY KEY,
    first_event INTEGER NOT NULL,
    last_event INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    filter BLOB NOT NULL
) STRICT;
CREATE TABLE key_entry (
    run INTEGER NOT NULL,
    hash BLOB NOT NULL,
    event INTEGER NOT NULL,
    PRIMARY KEY (run, hash)
) WITHOUT ROWID, STRICT;

-- Tokens of senders that were made. A token proves itself; of these rows only the revoked ones have to be known.
CREATE TABLE sender_token (
    id TEXT PRIMARY KEY,
    sender TEXT NOT NULL,
    issued_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) WITHOUT ROWID, STRICT;

-- What operators switch while clinch runs: pauses, safe mode. From `until` on a row says nothing more.
CREATE TABLE control (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    version INTEGER NOT NULL,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    until INTEGER
) WITHOUT ROWID, STRICT;

-- What people are asked. state: 0 pending, 1 approved, 2 rejected, 3 expired, 4 cancelled. on_expiry: 0 reject, 1 approve.
-- Nothing of the event is in it: what people see is put together again from the event.
CREATE TABLE approval (
    job INTEGER NOT NULL,
    step TEXT NOT NULL,
    flow TEXT NOT NULL,
    state INTEGER NOT NULL,
    voters TEXT NOT NULL,
    need INTEGER NOT NULL,
    on_expiry INTEGER NOT NULL,
    requester TEXT,
    asked_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    remind_at INTEGER,
    integration TEXT,
    channel TEXT,
    -- When people are to be told of it; how often they were.
    tell_at INTEGER,
    told INTEGER NOT NULL DEFAULT 0,
    decided_at INTEGER,
    decided_by TEXT,
    reason TEXT,
    PRIMARY KEY (job, step)
) WITHOUT ROWID, STRICT;
CREATE INDEX approval_pending ON approval (expires_at) WHERE state = 0;
CREATE INDEX approval_tell ON approval (tell_at) WHERE tell_at IS NOT NULL;

-- One person, one vote. vote: 1 approve, 2 reject, 3 cancel.
CREATE TABLE vote (
    job INTEGER NOT NULL,
    step TEXT NOT NULL,
    actor TEXT NOT NULL,
    vote INTEGER NOT NULL,
    at INTEGER NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (job, step, actor)
) WITHOUT ROWID, STRICT;

-- Replays that were counted before they were begun. state: 0 planned, 1 running, 2 paused, 3 stopped, 4 done.
-- What will happen (`run`, `noop`, `ask`, `kept`) is as it was counted; the counts at the end are what did.
CREATE TABLE replay_plan (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    query TEXT NOT NULL,
    run INTEGER NOT NULL,
    noop INTEGER NOT NULL,
    ask INTEGER NOT NULL,
    kept TEXT NOT NULL,
    oldest INTEGER,
    newest INTEGER,
    more INTEGER NOT NULL,
    state INTEGER NOT NULL,
    started_at INTEGER,
    started_by TEXT,
    started_why TEXT,
    rate TEXT,
    jobs_max INTEGER,
    canary INTEGER,
    stop_at INTEGER,
    at_once INTEGER,
    version INTEGER,
    ended_at INTEGER,
    why TEXT,
    next_at INTEGER NOT NULL DEFAULT 0,
    jobs INTEGER NOT NULL,
    released INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    nooped INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    changed INTEGER NOT NULL DEFAULT 0,
    asked INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0
) STRICT;

-- state: 0 waiting, 1 released, 2 success, 3 noop, 4 failed, 5 changed, 6 asks first. `mark` recognises the dead letter that was
-- counted.
CREATE TABLE replay_item (
    plan INTEGER NOT NULL,
    no INTEGER NOT NULL,
    job INTEGER NOT NULL,
    mark INTEGER NOT NULL,
    replays INTEGER NOT NULL,
    died_at INTEGER NOT NULL,
    state INTEGER NOT NULL DEFAULT 0,
    ended_at INTEGER,
    PRIMARY KEY (plan, no)
) WITHOUT ROWID, STRICT;
CREATE INDEX replay_item_waiting ON replay_item (plan, no) WHERE state = 0;
CREATE INDEX replay_item_released ON replay_item (plan, no) WHERE state = 1;

-- Dead letters that somebody wants to give up, until somebody confirms it. `mark` recognises the one that was meant.
CREATE TABLE drop_ask (
    job INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    mark INTEGER NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT;

-- Alerts, each from its beginning to its end. What is said of one only who wrote it understands. From `rest_at` on nothing more
-- is to be done about it. Of a name one is open at a time.
CREATE TABLE alert (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    value TEXT NOT NULL,
    began_at INTEGER NOT NULL,
    ended_at INTEGER,
    rest_at INTEGER
) STRICT;
CREATE UNIQUE INDEX alert_open ON alert (name) WHERE ended_at IS NULL;
CREATE INDEX alert_restless ON alert (id) WHERE rest_at IS NULL;
