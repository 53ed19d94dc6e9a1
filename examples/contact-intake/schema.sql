create table if not exists contacts (
    id bigint generated always as identity primary key,
    tenant text not null,
    email text not null,
    first_name text,
    writes integer not null default 1,
    unique (tenant, email)
);

create table if not exists effects (
    key text primary key,
    kind text not null,
    contact bigint references contacts,
    at timestamptz not null default now()
);
