-- Under which lease a call was begun: who lost his job takes back nothing that the next worker of it has begun.
ALTER TABLE call ADD COLUMN fence INTEGER NOT NULL DEFAULT 0;
