//! Declaration of fields. Each stands once, in [`document`](super::document) or
//! [`kube_ipvs`](super::kube_ipvs), with all that is known of it: type, default, effect, flag, check.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::setting::Setting;
use super::text::{Parsed, Text, Words, go_bool};
use syntax::duration::GoDuration;
use syntax::quantity::Quantity;

/// Conditions on numbers and times, in the words of kube-proxy's refusals.
pub(super) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub(super) const POSITIVE: &str = "must be greater than 0";

/// A value that must not be: the value, and what it must be.
pub type Refused = (String, String);

/// Part of a document, all of whose fields are declared.
pub trait Section {
    /// Returns all fields, with their flags.
    fn settings() -> Vec<Setting>;

    /// Sets the field that has this flag. None: no field has it.
    fn set_flag(&mut self, flag: &str, text: &str) -> Option<Result<(), String>>;

    /// Sets fields that are unset to their defaults.
    fn fill_defaults(&mut self);

    /// Returns each value that its own declaration refuses, after the path of the field.
    fn check(&self) -> Vec<(&'static str, Refused)>;
}

/// Type of a field.
pub trait Field {
    /// Words that a value may be. None: any other text.
    const WORDS: Words = &[];

    /// True if a flag adds to the value each time that it is given.
    const IS_LIST: bool = false;

    /// True if the field is as if nothing were written.
    fn is_unset(&self) -> bool;

    /// Takes the value of a flag.
    fn set(&mut self, text: &str) -> Result<(), String>;

    /// Returns a value that the type itself refuses.
    fn refused(&self) -> Option<Refused> {
        None
    }
}

/// Declares a part of a document: a struct, the beginning of its fields' paths, and its fields. A field has:
///
/// - its effect, as a comment, where `{words}` stands for the words of its type;
/// - its name in Rust, its type, and its name in the file, followed by what serde is to know;
/// - the name of its type in the reference; without one, the field is a part of its own;
/// - in braces and in this order, as far as it has them: `in`, the modes that it has an effect in, unless it
///   is all of them; `unused`, the reason for which it has none; `default`; `flag`, a flag's name, the name
///   of its value, its heading, and methods of [`Setting`]; `set`, for a flag whose text is more than a
///   value of the type; and `check`, for values that the type takes and the field does not.
macro_rules! settings {
    (
        $(#[doc = $doc:literal])*
        pub struct $Section:ident at $prefix:literal {
            $(
                $(#[doc = $text:literal])*
                $name:ident: $type:ty = $path:literal $(($($serde:tt)*))?
                    $(, $kind:literal { $($leaf:tt)* })? $(;)?
            )+
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $Section {
            $(
                #[doc = concat!("`", $prefix, $path, "`:")]
                $(#[doc = $text])*
                #[serde(rename = $path $(, $($serde)*)?)]
                pub $name: $type,
            )+
        }

        impl $crate::settings::Section for $Section {
            fn settings() -> Vec<$crate::setting::Setting> {
                let mut all = Vec::new();
                $(settings!(
                    @setting all [$type] [$prefix, $path] [$($text)*] $($kind $($leaf)*)?
                );)+
                all
            }

            fn set_flag(&mut self, flag: &str, text: &str) -> Option<Result<(), String>> {
                // Some parts have no field with a flag.
                let _ = (flag, text);
                $(settings!(@set self $name flag text $($kind $($leaf)*)?);)+
                None
            }

            fn fill_defaults(&mut self) {
                $(settings!(@default self $name $($kind $($leaf)*)?);)+
            }

            fn check(&self) -> Vec<(&'static str, $crate::settings::Refused)> {
                let mut found = Vec::new();
                $(settings!(@check self found $name [$prefix, $path] $($kind $($leaf)*)?);)+
                found
            }
        }
    };

    (@setting $all:ident [$type:ty] $path:tt []) => {
        $all.extend(<$type as $crate::settings::Section>::settings());
    };
    (
        @setting $all:ident [$type:ty] [$prefix:literal, $path:literal] $text:tt
        $kind:literal
        $(in: [$($mode:ident),+],)?
        $(unused: $why:expr,)?
        $(default: $default:expr,)?
        $(flag: $flag:literal $value:literal $heading:ident $($with:ident)*, $(set: $set:expr,)?)?
        $(check: $check:expr,)?
    ) => {
        let effect = settings!(@effect $text [$($($mode)+)?] $($why)?);
        let words = <$type as $crate::settings::Field>::WORDS;
        let setting = $crate::setting::Setting::new(concat!($prefix, $path), $kind, effect, words);
        $(
            let heading = $crate::setting::Heading::$heading;
            let setting = setting.flag($flag, $value, heading)$(.$with())*;
            let setting = if <$type as $crate::settings::Field>::IS_LIST {
                setting.repeated()
            } else {
                setting
            };
        )?
        $all.push(setting);
    };

    (@effect [] [] $why:expr) => {
        $crate::setting::Effect::Nothing($why)
    };
    (@effect [$($text:literal)+] []) => {
        $crate::setting::Effect::Does(concat!($($text),+))
    };
    (@effect [$($text:literal)+] [$($mode:ident)+]) => {
        $crate::setting::Effect::DoesIn(
            &[$(plan::mode::Mode::$mode),+],
            concat!($($text),+),
        )
    };

    (@set $self:ident $name:ident $given:ident $text:ident) => {
        if let Some(set) = $crate::settings::Section::set_flag(&mut $self.$name, $given, $text) {
            return Some(set);
        }
    };
    (
        @set $self:ident $name:ident $given:ident $text:ident $kind:literal
        $(in: $modes:tt,)?
        $(unused: $why:expr,)?
        $(default: $default:expr,)?
        $(flag: $flag:literal $value:literal $($with:ident)+, $(set: $set:expr,)?)?
        $(check: $check:expr,)?
    ) => {
        $(if $given == $flag {
            return Some(settings!(@set_with $self $name $text $($set)?));
        })?
    };

    (@set_with $self:ident $name:ident $text:ident $set:expr) => {
        $set(&mut $self.$name, $text)
    };
    (@set_with $self:ident $name:ident $text:ident) => {
        $crate::settings::Field::set(&mut $self.$name, $text)
    };

    (@default $self:ident $name:ident) => {
        $crate::settings::Section::fill_defaults(&mut $self.$name);
    };
    (
        @default $self:ident $name:ident $kind:literal $(in: $modes:tt,)? $(unused: $why:expr,)?
        default: $default:expr, $($rest:tt)*
    ) => {
        if $crate::settings::Field::is_unset(&$self.$name) {
            $self.$name = From::from($default);
        }
    };
    (@default $self:ident $name:ident $($rest:tt)+) => {};

    (@check $self:ident $found:ident $name:ident $path:tt) => {
        $found.extend($crate::settings::Section::check(&$self.$name));
    };
    (
        @check $self:ident $found:ident $name:ident [$prefix:literal, $path:literal] $kind:literal
        $(in: $modes:tt,)?
        $(unused: $why:expr,)?
        $(default: $default:expr,)?
        $(flag: $flag:literal $value:literal $($with:ident)+, $(set: $set:expr,)?)?
        $(check: $check:expr,)?
    ) => {
        let refused = $crate::settings::Field::refused(&$self.$name);
        $(let refused = refused.or_else(|| $check(&$self.$name));)?
        $found.extend(refused.map(|refused| (concat!($prefix, $path), refused)));
    };
}

pub(super) use settings;

/// A list has no fields of its own until it has items, to which no flag leads.
impl<T: Section> Section for Vec<T> {
    fn settings() -> Vec<Setting> {
        T::settings()
    }

    fn set_flag(&mut self, _: &str, _: &str) -> Option<Result<(), String>> {
        None
    }

    fn fill_defaults(&mut self) {
        self.iter_mut().for_each(T::fill_defaults);
    }

    fn check(&self) -> Vec<(&'static str, Refused)> {
        self.iter().flat_map(T::check).collect()
    }
}

/// Types that read a flag as they read a text.
macro_rules! read_as_text {
    ($($type:ty),+) => {
        $(impl Field for $type {
            fn is_unset(&self) -> bool {
                *self == <$type>::default()
            }

            fn set(&mut self, text: &str) -> Result<(), String> {
                *self = read(text)?;
                Ok(())
            }
        })+
    };
}

read_as_text!(i32, u32, usize, String, GoDuration, Quantity);

impl Field for f32 {
    fn is_unset(&self) -> bool {
        *self == 0.0
    }

    fn set(&mut self, text: &str) -> Result<(), String> {
        *self = read(text)?;
        Ok(())
    }
}

impl Field for bool {
    fn is_unset(&self) -> bool {
        !self
    }

    fn set(&mut self, text: &str) -> Result<(), String> {
        *self = go_bool(text)?;
        Ok(())
    }
}

impl<T: Field + Default> Field for Option<T> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn set(&mut self, text: &str) -> Result<(), String> {
        self.insert(T::default()).set(text)
    }
}

impl<T: Text> Field for Parsed<T> {
    const WORDS: Words = T::WORDS;

    fn is_unset(&self) -> bool {
        matches!(self, Self::Unset)
    }

    fn set(&mut self, text: &str) -> Result<(), String> {
        *self = Self::new(text);
        Ok(())
    }

    fn refused(&self) -> Option<Refused> {
        self.invalid().map(|(text, problem)| (text.to_owned(), problem.to_owned()))
    }
}

impl Field for Vec<String> {
    const IS_LIST: bool = true;

    fn is_unset(&self) -> bool {
        self.is_empty()
    }

    fn set(&mut self, text: &str) -> Result<(), String> {
        if !text.is_empty() {
            self.extend(text.split(',').map(|item| item.trim().to_owned()));
        }
        Ok(())
    }
}

/// `Name=true,Other=false`.
impl Field for BTreeMap<String, bool> {
    const IS_LIST: bool = true;

    fn is_unset(&self) -> bool {
        self.is_empty()
    }

    fn set(&mut self, text: &str) -> Result<(), String> {
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("malformed pair {pair:?}, expect string=bool"))?;
            let value = go_bool(value.trim())
                .map_err(|problem| format!("invalid value of {}: {problem}", name.trim()))?;
            self.insert(name.trim().to_owned(), value);
        }
        Ok(())
    }
}

/// Refuses a time that is negative.
pub(super) fn not_negative(time: &Option<GoDuration>) -> Option<Refused> {
    let time = time.filter(|time| *time < GoDuration::ZERO)?;
    Some((time.to_string(), NOT_NEGATIVE.to_owned()))
}

/// Refuses a time that is not longer than none.
pub(super) fn positive(time: &Option<GoDuration>) -> Option<Refused> {
    let time = time.filter(|time| *time <= GoDuration::ZERO)?;
    Some((time.to_string(), POSITIVE.to_owned()))
}

/// Refuses a number outside of a range.
pub(super) fn within<T>(number: &Option<T>, range: RangeInclusive<T>) -> Option<Refused>
where
    T: Copy + Display + PartialOrd,
{
    let number = number.filter(|number| !range.contains(number))?;
    let problem = format!("must be within the range [{}, {}]", range.start(), range.end());
    Some((number.to_string(), problem))
}

fn read<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|problem: T::Err| problem.to_string())
}
