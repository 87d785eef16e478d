//! Hash maps and sets of what the planner keeps and the kernel holds.
//!
//! Keys are addresses, ports and names, by the hundred thousand, and are looked up for each operation. The
//! standard library's hash took a sixth of the program's own time in a first sync. This one has a random
//! seed for each map as well, so that nobody who chooses names can choose which of them collide.

use foldhash::fast::RandomState;

/// See [`std::collections::HashMap`].
pub type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
/// See [`std::collections::HashSet`].
pub type HashSet<T> = std::collections::HashSet<T, RandomState>;
