import pg from 'pg';

// One for the life of the process, which runs many jobs.
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 1 });

/** Writes the contact once for each key; whoever comes again under the same key gets the same contact. */
export async function upsertContact(tenant, contact, key) {
  if (!tenant || !contact?.email) throw new Error('a contact needs a tenant and an email');
  const client = await pool.connect();
  try {
    await client.query('begin');
    const taken = await client.query(
      'insert into effects (key, kind) values ($1, $2) on conflict (key) do nothing returning key',
      [key, 'contact.upsert'],
    );
    if (taken.rowCount === 0) {
      await client.query('rollback');
      const { rows } = await pool.query('select contact from effects where key = $1', [key]);
      return { contact: Number(rows[0].contact), repeated: true };
    }
    const { rows } = await client.query(
      `insert into contacts (tenant, email, first_name) values ($1, lower($2), $3)
       on conflict (tenant, email) do update set first_name = excluded.first_name, writes = contacts.writes + 1
       returning id`,
      [tenant, contact.email, contact.first_name ?? null],
    );
    await client.query('update effects set contact = $2 where key = $1', [key, rows[0].id]);
    await client.query('commit');
    return { contact: Number(rows[0].id), repeated: false };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  } finally {
    client.release();
  }
}
