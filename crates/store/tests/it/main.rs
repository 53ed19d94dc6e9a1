//! What every engine of the store must keep, and what the embedded one keeps besides.

mod laws;
mod sqlite;
