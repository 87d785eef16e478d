//! Hash maps and sets of what the planner keeps and the kernel holds.
//!
//! Keys are addresses, ports and names, by the hundred thousand, and are looked up for each operation. The
//! standard library's hash took a fifth of the program's own time in a first sync. Seeds of this one differ
//! for each process and map, so that names which collide cannot be prepared. Who can watch hashes or their
//! timing could still find some.

use foldhash::fast::RandomState;

/// See [`std::collections::HashMap`].
pub type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
/// See [`std::collections::HashSet`].
pub type HashSet<T> = std::collections::HashSet<T, RandomState>;
