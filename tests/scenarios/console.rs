//! Questions of the operator's console to the loop.

mod diff;
mod journal;
