-- Times are microseconds since the Unix epoch. Ids grow with time: see `node.number` for how nodes share them.

CREATE TABLE fact (name text PRIMARY KEY, value bigint NOT NULL);
INSERT INTO fact (name, value) VALUES ('last_id', 0), ('live_version', 0), ('live_chosen', 0);

-- The pepper; one row per key that something is sealed with (`key_…`: recognises it, and tells nothing of it); `all_sealed`
-- where nothing is from before encryption.
CREATE TABLE secret (name text PRIMARY KEY, value bytea NOT NULL);

-- Workspaces that were live: a job runs the one it was accepted with.
CREATE TABLE version (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    hash bytea NOT NULL UNIQUE,
    files text NOT NULL
);

-- The nodes that live. `boot` names one start of one process and is never given twice; leases belong to it.
-- `number` goes into the ids that the node gives, and is free again when the node is gone.
CREATE TABLE node (
    boot bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    number smallint NOT NULL UNIQUE CHECK (number BETWEEN 0 AND 255),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The keys that it can read with; it writes with the first.
    keys text[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

-- Events and their history are kept in spans of time: as ids carry milliseconds in their high bits, the partitions of one
-- span hold the same ids in each of these tables, and everything about one event is in one span. They are made ahead and
-- dropped whole. What no span is there for is in the partition `…_rest`, and goes row by row.
CREATE TABLE span (
    first bigint PRIMARY KEY,
    next bigint NOT NULL,
    -- Up to here the history of jobs that are gone may still be there: it goes with the span.
    pruned_to bigint NOT NULL DEFAULT 0
);

-- Immutable, but for a payload that is sealed again or erased. The jobs of event n are n+1 … n+jobs.
CREATE TABLE event (
    id bigint PRIMARY KEY,
    received_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    status integer NOT NULL,
    jobs integer NOT NULL,
    source text NOT NULL,
    key bytea,
    fingerprint bytea,
    trace bytea NOT NULL,
    payload bytea NOT NULL
) PARTITION BY RANGE (id);
CREATE TABLE event_rest PARTITION OF event DEFAULT;

-- Keys are kept in buckets, dropped whole. New keys go into the newest; the others are sealed: nothing is written into
-- them any more.
CREATE TABLE bucket (
    no integer PRIMARY KEY,
    since bigint NOT NULL,
    -- All its keys have expired then.
    until bigint NOT NULL DEFAULT 0,
    sealed_at bigint
);
INSERT INTO bucket (no, since) VALUES (1, (extract(epoch FROM now()) * 1000000)::bigint);

-- Who holds a key: of several rows the one in the newest bucket. Its key may be taken over when it has expired and every
-- job of the event has ended well.
CREATE TABLE dedup (
    key bytea NOT NULL,
    event bigint NOT NULL,
    expires_at bigint NOT NULL,
    jobs integer NOT NULL,
    bucket integer NOT NULL,
    PRIMARY KEY (key, bucket)
) PARTITION BY LIST (bucket);
CREATE TABLE dedup_1 PARTITION OF dedup FOR VALUES IN (1);

-- state: 0 ready, 1 success, 2 noop, 3 dead, 4 running, 5 ready but not its turn: not before run_at, and where the order is
-- kept not before it is the first of its lane, 6 dropped.
-- ord: 0 any, 1 in order within its lane, 2 likewise and nobody passes it when it is dead.
-- slot: 0 for what has ended; the others are a ring. A life leaves old versions of its row behind, and as long as anybody keeps
-- an old snapshot no vacuum can remove them; but a slot of the ring is emptied as a whole when hardly a live row is left
-- in it. What has ended is written once. A job has one row: an id is given once, and a row that moves is deleted and
-- inserted in one statement.
CREATE TABLE job (
    id bigint NOT NULL,
    event bigint NOT NULL,
    version bigint NOT NULL,
    received_at bigint NOT NULL,
    run_at bigint NOT NULL,
    lane bigint NOT NULL,
    -- The lowest is next among those of its priority.
    turn bigint NOT NULL,
    -- Its place in its lane, where the order is kept.
    pos bigint,
    -- Of the last claim; 0 before the first.
    fence bigint NOT NULL DEFAULT 0,
    -- While it runs: until when, and in which boot of a node.
    lease_until bigint,
    node bigint,
    first_attempt_at bigint,
    ended_at bigint,
    failures integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    replays integer NOT NULL DEFAULT 0,
    state smallint NOT NULL,
    ord smallint NOT NULL,
    priority smallint NOT NULL,
    reason smallint,
    -- For what it waits, when it was put off.
    waits smallint,
    slot smallint NOT NULL,
    flow text NOT NULL,
    queue text COLLATE "C" NOT NULL
) PARTITION BY LIST (slot);
CREATE TABLE job_rest PARTITION OF job (PRIMARY KEY (id)) FOR VALUES IN (0)
    WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
CREATE TABLE job_1 PARTITION OF job (PRIMARY KEY (id)) FOR VALUES IN (1)
    WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05,
          autovacuum_vacuum_cost_delay = 1);
CREATE TABLE job_2 PARTITION OF job (PRIMARY KEY (id)) FOR VALUES IN (2)
    WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05,
          autovacuum_vacuum_cost_delay = 1);
CREATE TABLE job_3 PARTITION OF job (PRIMARY KEY (id)) FOR VALUES IN (3)
    WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05,
          autovacuum_vacuum_cost_delay = 1);
CREATE INDEX job_ready ON job (queue, priority DESC, turn, id) WHERE state = 0;
CREATE INDEX job_later ON job (queue, ord, run_at, id) WHERE state = 5;
-- A place is taken once in all slots together: the row of the lane gives it.
CREATE UNIQUE INDEX job_rest_lane ON job_rest (queue, lane, pos) WHERE ord > 0;
CREATE UNIQUE INDEX job_1_lane ON job_1 (queue, lane, pos) WHERE ord > 0;
CREATE UNIQUE INDEX job_2_lane ON job_2 (queue, lane, pos) WHERE ord > 0;
CREATE UNIQUE INDEX job_3_lane ON job_3 (queue, lane, pos) WHERE ord > 0;
-- Not by lease_until: a heartbeat must stay an update that touches no index.
CREATE INDEX job_running ON job (node) WHERE state = 4;
CREATE INDEX job_dead ON job (id) WHERE state = 3;
-- Dead letters are counted by it alone.
CREATE INDEX job_dead_of ON job (flow, reason, ended_at, slot) WHERE state = 3;
CREATE INDEX job_dropped ON job (id) WHERE state = 6;

-- New jobs go into this slot. Who has not heard of it yet may write into another: that is late, and no more.
-- Before `not_before` nobody tries to empty a slot: somebody did not let go of one.
CREATE TABLE ring (not_before bigint NOT NULL DEFAULT 0, active smallint NOT NULL) WITH (fillfactor = 50);
INSERT INTO ring (active) VALUES (1);

-- The lanes that keep their order, each for as long as there is a job of it. Positions are given without gaps, and jobs leave
-- in order: so the first is the lowest of `again`, or else `head`, up to `last`.
CREATE TABLE lane (
    id bigint NOT NULL,
    head bigint NOT NULL,
    last bigint NOT NULL,
    -- The job that runs; the dead letter that nobody passes.
    running bigint,
    blocked bigint,
    -- Not before this time is the first looked at.
    due_at bigint NOT NULL,
    -- Of the first.
    priority smallint NOT NULL,
    -- There is a first, none runs, and nothing is in the way.
    open boolean NOT NULL,
    queue text COLLATE "C" NOT NULL,
    -- The positions before `head` of dead letters that live again.
    again bigint[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (queue, id)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX lane_open ON lane (queue, priority DESC, due_at, id) WHERE open;
CREATE INDEX lane_due ON lane (queue, due_at) WHERE open;
-- Where they are while the table is emptied.
CREATE TABLE lane_aside (LIKE lane);

-- How far each queue has come at each priority: the highest turn that was claimed, as nodes tell now and then.
CREATE TABLE queue_turn (
    turn bigint NOT NULL,
    priority smallint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, priority)
) WITH (fillfactor = 50);

-- How far the moments are taken at which an integration may be called.
CREATE TABLE pace (last bigint NOT NULL, name text COLLATE "C" PRIMARY KEY) WITH (fillfactor = 50);

-- The places of integrations that bear so many calls at once: how many each node has that calls them. They go with the node.
CREATE TABLE place (
    node bigint NOT NULL REFERENCES node ON DELETE CASCADE,
    held integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    PRIMARY KEY (name, node)
) WITH (fillfactor = 50);
CREATE INDEX place_node ON place (node);

-- Schedules: the slot that was used up last, and the job of the last run.
CREATE TABLE schedule (last bigint NOT NULL, job bigint, name text COLLATE "C" PRIMARY KEY) WITH (fillfactor = 50);

-- Keys that steps have set, and when they may be set again.
CREATE TABLE once (until bigint NOT NULL, key bytea PRIMARY KEY);
CREATE INDEX once_until ON once (until);

-- Calls that were made for others under their keys. state: 0 open (until `until`), 1 done, 2 unknown.
CREATE TABLE call (
    turn bigint NOT NULL,
    since bigint NOT NULL,
    until bigint NOT NULL,
    expires bigint NOT NULL,
    state smallint NOT NULL,
    key bytea PRIMARY KEY,
    fingerprint bytea NOT NULL,
    answer bytea
);
CREATE INDEX call_expires ON call (expires);

-- What entities have used of their retry budgets; an entity is a hash under the pepper. `units` in `lasts` are allowed.
-- Nothing is left before `free_at`, if that is not 0; from `over_at` on the row says nothing any more.
CREATE TABLE budget (
    since bigint NOT NULL,
    lasts bigint NOT NULL,
    free_at bigint NOT NULL,
    over_at bigint NOT NULL,
    spent integer NOT NULL,
    extra integer NOT NULL,
    units integer NOT NULL,
    budget text COLLATE "C" NOT NULL,
    entity bytea NOT NULL,
    PRIMARY KEY (budget, entity)
) WITH (fillfactor = 70);
CREATE INDEX budget_over ON budget (over_at);
CREATE INDEX budget_exhausted ON budget (free_at, budget) WHERE free_at > 0;

-- What was done, or is about to be, to contacts that a policy counts: a contact is a hash under the pepper, in the scope of its
-- policy. From `until` on the row counts nowhere any more.
CREATE TABLE admission (
    job bigint NOT NULL,
    at bigint NOT NULL,
    until bigint NOT NULL,
    step text NOT NULL,
    channel text COLLATE "C" NOT NULL,
    contact bytea NOT NULL,
    PRIMARY KEY (job, step, contact)
);
CREATE INDEX admission_contact ON admission (contact, at);
CREATE INDEX admission_until ON admission (until);

-- Grows with each claim of any job. No cache: a session that kept numbers back would give small ones late.
CREATE SEQUENCE fence;

CREATE TABLE attempt (
    job bigint NOT NULL,
    started_at bigint NOT NULL,
    ended_at bigint NOT NULL,
    no integer NOT NULL,
    reason smallint,
    outcome text NOT NULL,
    error bytea,
    PRIMARY KEY (job, no)
) PARTITION BY RANGE (job);
CREATE TABLE attempt_rest PARTITION OF attempt DEFAULT;

-- The ledger. What becomes of an effect is a line of its own, and no line is changed: the last of an effect counts.
-- state: 0 open, 1 done, 2 not done, 3 unknown, 4 given up: then `status` is the number of the reason.
CREATE TABLE effect (
    job bigint NOT NULL,
    first_intended_at bigint NOT NULL,
    changed_at bigint NOT NULL,
    fence bigint NOT NULL,
    no integer NOT NULL,
    sends integer NOT NULL,
    status integer,
    class smallint NOT NULL,
    state smallint NOT NULL,
    name text NOT NULL,
    body bytea,
    PRIMARY KEY (job, name, no)
) PARTITION BY RANGE (job);
CREATE TABLE effect_rest PARTITION OF effect DEFAULT;
-- People look for what is unknown. Only such lines are in it: to write the others costs nothing more.
CREATE INDEX effect_unknown ON effect (job, name) WHERE state = 3;

-- What workers learned of something they sent after their job was another's: evidence, which changes no state. Few, so not in
-- spans: they go with the row of their job.
CREATE TABLE late_answer (
    job bigint NOT NULL,
    fence bigint NOT NULL,
    at bigint NOT NULL,
    status integer,
    state smallint NOT NULL,
    name text NOT NULL,
    body bytea,
    PRIMARY KEY (job, name, fence)
);

-- Later deliveries under the key of an event. kind: 0 duplicate, 1 conflict. The last row counts what came after it.
CREATE TABLE delivery (
    event bigint NOT NULL,
    at bigint NOT NULL,
    times bigint NOT NULL,
    no integer NOT NULL,
    kind smallint NOT NULL,
    PRIMARY KEY (event, no)
) PARTITION BY RANGE (event);
CREATE TABLE delivery_rest PARTITION OF delivery DEFAULT;

-- By what events are found: keyed hashes of what `find_by` names in them.
CREATE TABLE handle (event bigint NOT NULL, mark bigint NOT NULL, PRIMARY KEY (event, mark)) PARTITION BY RANGE (event);
CREATE TABLE handle_rest PARTITION OF handle DEFAULT;
CREATE INDEX handle_mark ON handle (mark, event);

-- Who did what, from where and why. Each row is chained to the one before it by its hash; where the chain ends is kept apart,
-- so that a tail that is missing is missed.
CREATE TABLE audit (
    id bigint PRIMARY KEY,
    at bigint NOT NULL,
    job bigint,
    actor text NOT NULL,
    origin text NOT NULL,
    action text NOT NULL,
    object text NOT NULL,
    before text,
    after text,
    reason text NOT NULL,
    hash bytea NOT NULL
);
CREATE INDEX audit_job ON audit (job) WHERE job IS NOT NULL;
CREATE TABLE audit_head (count bigint NOT NULL, hash bytea NOT NULL) WITH (fillfactor = 50);
INSERT INTO audit_head (count, hash) VALUES (0, decode(repeat('00', 32), 'hex'));
-- While a store is being moved in, what an earlier try has left may go: nobody is served from it yet.
CREATE FUNCTION audit_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' AND EXISTS (SELECT 1 FROM fact WHERE name = 'moving') THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'the audit is only added to';
END $$;
CREATE TRIGGER audit_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON audit EXECUTE FUNCTION audit_is_kept();

-- Users. password: an argon2id string. identity: the digest of who a provider says that it is.
CREATE TABLE person (
    name text COLLATE "C" PRIMARY KEY,
    added_at bigint NOT NULL,
    role text COLLATE "C" NOT NULL,
    password text,
    identity bytea UNIQUE
);

-- Their tokens, of which only the digest is kept. role: that of the user, where there is none.
CREATE TABLE person_token (
    digest bytea PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    person text COLLATE "C" NOT NULL,
    made_at bigint NOT NULL,
    expires_at bigint,
    used_at bigint,
    role text COLLATE "C",
    source text COLLATE "C"
);

-- Who is logged in, and the links that log somebody in once: digests again. person: a user, or admin.
CREATE TABLE session (
    digest bytea PRIMARY KEY,
    person text COLLATE "C" NOT NULL,
    role text COLLATE "C" NOT NULL,
    made_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    expires_at bigint NOT NULL
);

CREATE TABLE login_link (
    digest bytea PRIMARY KEY,
    person text COLLATE "C" NOT NULL,
    role text COLLATE "C" NOT NULL,
    made_at bigint NOT NULL,
    expires_at bigint NOT NULL
);

-- What was ever accepted and expired is the sum of these rows. Each transaction adds one; many are folded into one.
-- Appended and not updated: a counter that every commit updates slows down as soon as somebody holds an old snapshot.
CREATE TABLE tally (
    accepted bigint NOT NULL DEFAULT 0,
    created bigint NOT NULL DEFAULT 0,
    expired bigint NOT NULL DEFAULT 0,
    events_expired bigint NOT NULL DEFAULT 0
);

-- Tokens of senders that were made. A token proves itself; of these rows only the revoked ones have to be known.
CREATE TABLE sender_token (
    id text PRIMARY KEY,
    sender text NOT NULL,
    issued_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint
);

-- What operators switch while clinch runs: pauses, safe mode. From `until` on a row says nothing more.
CREATE TABLE control (
    version bigint NOT NULL,
    at bigint NOT NULL,
    until bigint,
    name text COLLATE "C" PRIMARY KEY,
    value text NOT NULL,
    actor text NOT NULL
);
CREATE SEQUENCE control_version;

-- What people are asked. state: 0 pending, 1 approved, 2 rejected, 3 expired, 4 cancelled. on_expiry: 0 reject, 1 approve.
-- Nothing of the event is in it: what people see is put together again from the event. Few, so not in spans: they go with
-- the row of their job. Whoever decides one has locked its job before.
CREATE TABLE approval (
    job bigint NOT NULL,
    asked_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    remind_at bigint,
    -- When people are to be told of it; how often they were.
    tell_at bigint,
    decided_at bigint,
    told integer NOT NULL DEFAULT 0,
    need integer NOT NULL,
    state smallint NOT NULL,
    on_expiry smallint NOT NULL,
    step text COLLATE "C" NOT NULL,
    flow text NOT NULL,
    voters text NOT NULL,
    requester text,
    integration text,
    channel text,
    decided_by text,
    reason text,
    PRIMARY KEY (job, step)
);
CREATE INDEX approval_pending ON approval (expires_at) WHERE state = 0;
CREATE INDEX approval_tell ON approval (tell_at) WHERE tell_at IS NOT NULL;

-- One person, one vote. vote: 1 approve, 2 reject, 3 cancel.
CREATE TABLE vote (
    job bigint NOT NULL,
    at bigint NOT NULL,
    vote smallint NOT NULL,
    step text COLLATE "C" NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (job, step, actor)
);

-- Replays that were counted before they were begun. state: 0 planned, 1 running, 2 paused, 3 stopped, 4 done.
-- What will happen (`run`, `noop`, `ask`, `kept`) is as it was counted; the counts at the end are what did.
CREATE TABLE replay_plan (
    id bigint PRIMARY KEY,
    at bigint NOT NULL,
    run bigint NOT NULL,
    noop bigint NOT NULL,
    ask bigint NOT NULL,
    oldest bigint,
    newest bigint,
    started_at bigint,
    jobs_max bigint,
    canary bigint,
    stop_at bigint,
    at_once bigint,
    version bigint,
    ended_at bigint,
    next_at bigint NOT NULL DEFAULT 0,
    jobs bigint NOT NULL,
    released bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,
    nooped bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    changed bigint NOT NULL DEFAULT 0,
    asked bigint NOT NULL DEFAULT 0,
    lost bigint NOT NULL DEFAULT 0,
    state smallint NOT NULL,
    more boolean NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    query text NOT NULL,
    kept text NOT NULL,
    started_by text,
    started_why text,
    rate text,
    why text
) WITH (fillfactor = 50);

-- state: 0 waiting, 1 released, 2 success, 3 noop, 4 failed, 5 changed, 6 asks first. `mark` recognises the dead letter that was
-- counted.
CREATE TABLE replay_item (
    plan bigint NOT NULL,
    job bigint NOT NULL,
    mark bigint NOT NULL,
    died_at bigint NOT NULL,
    ended_at bigint,
    no integer NOT NULL,
    replays integer NOT NULL,
    state smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (plan, no)
) WITH (fillfactor = 70);
CREATE INDEX replay_item_waiting ON replay_item (plan, no) WHERE state = 0;
CREATE INDEX replay_item_released ON replay_item (plan, no) WHERE state = 1;

-- Dead letters that somebody wants to give up, until somebody confirms it. `mark` recognises the one that was meant.
CREATE TABLE drop_ask (
    job bigint PRIMARY KEY,
    at bigint NOT NULL,
    mark bigint NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL
);

-- Alerts, each from its beginning to its end. What is said of one only who wrote it understands. From `rest_at` on nothing more
-- is to be done about it. Of a name one is open at a time.
CREATE TABLE alert (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    version bigint NOT NULL,
    began_at bigint NOT NULL,
    ended_at bigint,
    rest_at bigint,
    name text COLLATE "C" NOT NULL,
    value text NOT NULL
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX alert_open ON alert (name) WHERE ended_at IS NULL;
CREATE INDEX alert_restless ON alert (id) WHERE rest_at IS NULL;
