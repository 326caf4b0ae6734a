//! From a table of members to types that read and write themselves.

use super::shape::{Member, Shape};
use super::value::{Value, Violation};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

/// An object with members of its own, and others, which are kept.
pub trait Record: Default {
    /// The members this type names, in the order they are written.
    fn members() -> &'static [Member];

    /// Reads an object.
    ///
    /// # Errors
    /// The first member, in the order of the type, that is missing or wrong.
    fn from_object(object: Object) -> Result<Self, Violation>;

    /// Writes an object: all members of the type in their order, defaults too, then the others.
    fn to_object(&self) -> Object;

    /// Of a message, the id of the request it belongs to; empty for none.
    fn req_id(&self) -> &str;
}

/// The members of a message type, beside the base keys.
pub trait Content: Record {
    /// The type string.
    const TYPE: &'static str;
}

impl<T: Record> Value for T {
    const SHAPE: Shape = Shape::Record(T::members);

    fn read(value: Json) -> Result<Self, Violation> {
        T::from_object(Object::read(value)?)
    }

    fn write(&self) -> Option<Json> {
        Some(self.to_object().into())
    }
}

/// For the modules beside this one. Declares types by a table of their members: name, type, and the
/// default where there is one. A member without a default is required. A string before the name
/// makes it a message type; a name after `if` is a last check.
macro_rules! records {
    ($(
        $(#[$doc:meta])*
        $($type_name:literal =>)? $name:ident $(if $check:ident)? {
            $($member:ident $(as $wire:literal)?: $type:ty $(= $default:tt)?,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $(
                #[doc = concat!(
                    "`", stringify!($type), "`",
                    $(", by default `", stringify!($default), "`",)? "."
                )]
                pub $member: $type,
            )*
            /// The members that this type does not name.
            pub extras: crate::json::Object,
        }

        /// The defaults; a required member is empty.
        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($member: default_of!($($default)?),)*
                    extras: crate::json::Object::new(),
                }
            }
        }

        impl super::record::Record for $name {
            fn members() -> &'static [super::shape::Member] {
                const MEMBERS: &[super::shape::Member] = &[$(super::shape::Member {
                    name: wire_name!($member $($wire)?),
                    shape: <$type as super::value::Value>::SHAPE,
                    presence: presence_of!($($default)?),
                },)*];
                MEMBERS
            }

            fn from_object(
                object: crate::json::Object,
            ) -> Result<Self, super::value::Violation> {
                $(let mut $member = None;)*
                let mut extras = crate::json::Object::new();
                for (name, value) in object {
                    match name.as_str() {
                        $(wire_name!($member $($wire)?) => $member = Some(value),)*
                        _ => {
                            extras.insert(name, value);
                        }
                    }
                }
                let record = Self {
                    $($member: read_member!($member, wire_name!($member $($wire)?), $($default)?),)*
                    extras,
                };
                $($check(&record)?;)?
                Ok(record)
            }

            fn to_object(&self) -> crate::json::Object {
                let mut object = crate::json::Object::new();
                $(
                    if let Some(value) = super::value::Value::write(&self.$member) {
                        object.insert(wire_name!($member $($wire)?), value);
                    }
                )*
                for (name, value) in self.extras.iter() {
                    object.insert(name.clone(), value.clone());
                }
                object
            }

            fn req_id(&self) -> &str {
                super::record::req_id_of([$(own_req_id!(self, $member)),*], &self.extras)
            }
        }

        $(impl super::record::Content for $name {
            const TYPE: &'static str = $type_name;
        })?
    )*};
}

/// Declares closed sets of words; the first is the default.
macro_rules! words {
    ($(
        $(#[$doc:meta])*
        $name:ident { $first:ident = $first_word:literal, $($variant:ident = $word:literal,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub enum $name {
            #[default]
            #[doc = concat!("`", $first_word, "`.")]
            $first,
            $(
                #[doc = concat!("`", $word, "`.")]
                $variant,
            )*
        }

        impl $name {
            /// The word.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    Self::$first => $first_word,
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl super::value::Value for $name {
            const SHAPE: super::shape::Shape =
                super::shape::Shape::Word(&[$first_word, $($word),*]);

            fn read(
                value: crate::json::Json,
            ) -> Result<Self, super::value::Violation> {
                match value.as_str() {
                    Some($first_word) => Ok(Self::$first),
                    $(Some($word) => Ok(Self::$variant),)*
                    _ => Err(super::value::Violation::wrong(
                        concat!("one of ", $first_word, $(", ", $word),*),
                    )),
                }
            }

            fn write(&self) -> Option<crate::json::Json> {
                Some(self.as_str().into())
            }
        }
    )*};
}

/// The name of a member on the wire.
macro_rules! wire_name {
    ($member:ident) => {
        stringify!($member)
    };
    ($member:ident $wire:literal) => {
        $wire
    };
}

/// The value of a member that is left out, or of a required one before it is set.
macro_rules! default_of {
    () => {
        Default::default()
    };
    ({}) => {
        super::value::Preset::preset(super::value::Empty)
    };
    ([]) => {
        default_of!({})
    };
    ($literal:literal) => {
        super::value::Preset::preset($literal)
    };
    // `null`, `now`, `new_id`, and `default` for the first of a set of words.
    ($word:ident) => {
        Default::default()
    };
}

macro_rules! presence_of {
    () => {
        super::shape::Presence::Required
    };
    ($default:tt) => {
        super::shape::Presence::Default(stringify!($default))
    };
}

/// Reads a member that may have been found.
macro_rules! read_member {
    ($found:ident, $name:expr, $($default:tt)?) => {
        match $found {
            Some(value) => super::value::Value::read(value)
                .map_err(|violation| violation.inside($name))?,
            None => absent!($name, $($default)?),
        }
    };
}

macro_rules! absent {
    ($name:expr,) => {
        return Err(super::value::Violation::new(
            $name,
            super::value::Problem::Missing,
        ))
    };
    ($name:expr, $default:tt) => {
        default_of!($default)
    };
}

/// The member `req_id`, where this is it.
macro_rules! own_req_id {
    ($record:ident, req_id) => {
        Some(&$record.req_id)
    };
    ($record:ident, $other:ident) => {
        None
    };
}

/// The `req_id` that the type names, or else the one that was put into a message of a type without.
pub(super) fn req_id_of<'a, const N: usize>(
    own: [Option<&'a Text>; N],
    extras: &'a Object,
) -> &'a str {
    let extra = || extras.get("req_id").and_then(|value| value.as_str());
    own.into_iter()
        .flatten()
        .next()
        .map(Text::as_str)
        .or_else(extra)
        .unwrap_or_default()
}
