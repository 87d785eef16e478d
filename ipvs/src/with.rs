//! Methods that return a value with one field changed. Structs that may get more fields have them,
//! because only this crate can name all fields of such a struct.

/// Defines such methods: `with_weight(u32) sets weight;`.
macro_rules! with {
    ($($method:ident($type:ty) sets $field:ident;)*) => {$(
        #[doc = concat!(
            "Returns the same with another [`", stringify!($field), "`](field@Self::",
            stringify!($field), ")."
        )]
        #[must_use]
        pub fn $method(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )*};
}

pub(crate) use with;
