"""Guards that hold whoever writes: legal transitions, immutable outcomes, gap-free sequences."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# The same table as app.jobs.lifecycle.LEGAL; a test compares them.
LEGAL = [
    "queued>provisioning", "queued>paused", "queued>cancelled", "queued>failed",
    "provisioning>running", "provisioning>queued", "provisioning>paused",
    "provisioning>cancelled", "provisioning>failed",
    "running>finalizing", "running>queued", "running>paused", "running>cancelled", "running>failed",
    "finalizing>succeeded", "finalizing>queued", "finalizing>cancelled", "finalizing>failed",
    "paused>queued", "paused>cancelled", "paused>failed",
]

JOBS = f"""
CREATE FUNCTION polar_guard_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.status IN ('succeeded', 'failed', 'cancelled') AND (
        NEW.status, NEW.reason, NEW.message, NEW.finished_at
    ) IS DISTINCT FROM (OLD.status, OLD.reason, OLD.message, OLD.finished_at) THEN
        RAISE EXCEPTION 'job % is %: its outcome is final', OLD.id, OLD.status
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.status <> OLD.status AND NOT (
        OLD.status || '>' || NEW.status = ANY (ARRAY[{", ".join(f"'{pair}'" for pair in LEGAL)}])
    ) THEN
        RAISE EXCEPTION 'job % cannot go from % to %', OLD.id, OLD.status, NEW.status
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.last_seq < OLD.last_seq OR NEW.project_id <> OLD.project_id THEN
        RAISE EXCEPTION 'job %: sequence and project never go back', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION polar_guard_job();

CREATE FUNCTION polar_guard_new_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status <> 'queued' OR NEW.last_seq NOT IN (0, 1) THEN
        RAISE EXCEPTION 'a job begins queued, with its first event at most'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_new BEFORE INSERT ON jobs
    FOR EACH ROW EXECUTE FUNCTION polar_guard_new_job();

CREATE FUNCTION polar_guard_sequence() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE before bigint := CASE TG_OP WHEN 'INSERT' THEN 0 ELSE OLD.last_seq END;
DECLARE written bigint;
BEGIN
    SELECT count(*) INTO written FROM job_events
        WHERE job_id = NEW.id AND seq > before AND seq <= NEW.last_seq;
    IF written <> NEW.last_seq - before THEN
        RAISE EXCEPTION 'job %: events %..% have a gap', NEW.id, before + 1, NEW.last_seq
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER gap_free AFTER UPDATE OF last_seq ON jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.last_seq IS DISTINCT FROM NEW.last_seq)
    EXECUTE FUNCTION polar_guard_sequence();
CREATE CONSTRAINT TRIGGER gap_free_new AFTER INSERT ON jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.last_seq > 0)
    EXECUTE FUNCTION polar_guard_sequence();
"""

EVENTS = """
CREATE FUNCTION polar_guard_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM added JOIN jobs ON jobs.id = added.job_id
        WHERE added.seq > jobs.last_seq OR added.seq < 1 OR added.project_id <> jobs.project_id
    ) THEN
        RAISE EXCEPTION 'an event lies outside of its job''s sequence or project'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER within_sequence AFTER INSERT ON job_events REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION polar_guard_events();

CREATE FUNCTION polar_refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER immutable BEFORE UPDATE ON job_events
    FOR EACH ROW EXECUTE FUNCTION polar_refuse_update();
"""

ATTEMPTS = """
CREATE FUNCTION polar_guard_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.finished_at IS NOT NULL AND (
        NEW.outcome, NEW.reason, NEW.message, NEW.exit_code, NEW.finished_at
    ) IS DISTINCT FROM (
        OLD.outcome, OLD.reason, OLD.message, OLD.exit_code, OLD.finished_at
    ) THEN
        RAISE EXCEPTION 'attempt % is over: its outcome is final', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.last_n < OLD.last_n OR NEW.job_id <> OLD.job_id THEN
        RAISE EXCEPTION 'attempt %: its events never go back', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard BEFORE UPDATE ON attempts
    FOR EACH ROW EXECUTE FUNCTION polar_guard_attempt();
"""

# Hints wake the reconciler at the commit, not at its next look. Commits that notify queue up behind
# one lock of the whole server, so only the hint that finds no other waiting does: behind a waiting
# one the relay is awake already, or looks again within its poll.
WAKE = """
CREATE FUNCTION polar_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM outbox WHERE id < (SELECT min(id) FROM added)) THEN
        PERFORM pg_notify('polar_work', TG_TABLE_NAME);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER wake AFTER INSERT ON outbox REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION polar_wake();
"""

CHECKS = """
ALTER TABLE jobs ADD CONSTRAINT ck_jobs_status CHECK (status IN
    ('queued', 'provisioning', 'running', 'finalizing', 'paused', 'succeeded', 'failed', 'cancelled'));
ALTER TABLE jobs ADD CONSTRAINT ck_jobs_reason CHECK ((status = 'failed') <= (reason IS NOT NULL));
ALTER TABLE jobs ADD CONSTRAINT ck_jobs_finished CHECK
    ((status IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL));
ALTER TABLE attempts ADD CONSTRAINT ck_attempts_outcome CHECK
    ((finished_at IS NOT NULL) = (outcome IS NOT NULL));
ALTER TABLE preparations ADD CONSTRAINT ck_preparations_status CHECK
    (status IN ('waiting', 'running', 'done', 'failed'));
ALTER TABLE api_keys ADD CONSTRAINT ck_api_keys_role CHECK
    (role IN ('viewer', 'submitter', 'operator', 'admin'));
"""

DEFAULT_PROJECT = "INSERT INTO projects (id, name) VALUES ('prj_default', 'default')"


def upgrade() -> None:
    for block in (CHECKS, JOBS, EVENTS, ATTEMPTS, WAKE, DEFAULT_PROJECT):
        op.execute(block)


def downgrade() -> None:
    op.execute(
        """
        DROP TRIGGER wake ON outbox;
        DROP TRIGGER guard ON attempts;
        DROP TRIGGER immutable ON job_events;
        DROP TRIGGER within_sequence ON job_events;
        DROP TRIGGER gap_free_new ON jobs;
        DROP TRIGGER gap_free ON jobs;
        DROP TRIGGER guard_new ON jobs;
        DROP TRIGGER guard ON jobs;
        DROP FUNCTION polar_wake, polar_guard_attempt, polar_refuse_update, polar_guard_events,
            polar_guard_sequence, polar_guard_new_job, polar_guard_job;
        ALTER TABLE jobs DROP CONSTRAINT ck_jobs_status, DROP CONSTRAINT ck_jobs_reason,
            DROP CONSTRAINT ck_jobs_finished;
        ALTER TABLE attempts DROP CONSTRAINT ck_attempts_outcome;
        ALTER TABLE preparations DROP CONSTRAINT ck_preparations_status;
        ALTER TABLE api_keys DROP CONSTRAINT ck_api_keys_role;
        """
    )
