//! Generates types, with their readers and writers, from tables of members.

use super::shape::{Member, Shape, WhenAbsent};
use super::value::{Problem, Value, Violation};
use crate::json::{Json, Object};

/// An object with known members; additional members are preserved.
pub trait Record: Default {
    /// The members this type names, in the order they are written.
    fn members() -> &'static [Member];

    /// The values of [`Record::members`] in the same order, and the additional members.
    #[doc(hidden)]
    fn parts(&self) -> (Vec<&dyn Field>, &Object);

    /// The same, mutable.
    #[doc(hidden)]
    fn parts_mut(&mut self) -> (Vec<&mut dyn Field>, &mut Object);

    /// Checks rules that involve several members.
    #[doc(hidden)]
    fn check(&self) -> Result<(), Violation> {
        Ok(())
    }

    /// Reads an object.
    ///
    /// # Errors
    /// The missing and invalid members, in the order of the type, up to a maximum.
    fn from_object(mut object: Object) -> Result<Self, Vec<Violation>> {
        let mut record = Self::default();
        let (values, extras) = record.parts_mut();
        let members = Self::members().iter().zip(values);
        let read = members.map(|(member, value)| {
            let read = match object.remove(member.name) {
                Some(json) => value.set(json),
                None if member.presence == WhenAbsent::Required => {
                    Err(vec![Violation::new("", Problem::Missing)])
                }
                None => Ok(()),
            };
            read.map_err(|violations| Violation::inside(violations, member.name))
        });
        Violation::all::<_, Vec<()>>(read)?;
        *extras = object;
        record.check().map_err(|violation| vec![violation])?;
        Ok(record)
    }

    /// Writes an object: all members of the type in their order, including defaults, then the additional ones.
    fn to_object(&self) -> Object {
        let (values, extras) = self.parts();
        let members = Self::members().iter().zip(values);
        let own = members.filter_map(|(member, value)| Some((member.name.into(), value.json()?)));
        let others = extras
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()));
        own.chain(others).collect()
    }

    /// For a message, the id of its request; empty if there is none.
    fn req_id(&self) -> &str {
        let (values, extras) = self.parts();
        let mut members = Self::members().iter().zip(values);
        let own = members.find(|(member, _)| member.name == "req_id");
        own.and_then(|(_, value)| value.text())
            .or_else(|| extras.get("req_id")?.as_str())
            .unwrap_or_default()
    }
}

/// A member's value of any type.
pub trait Field {
    /// Reads it.
    fn set(&mut self, json: Json) -> Result<(), Vec<Violation>>;

    /// Writes the value; `None` to omit the member.
    fn json(&self) -> Option<Json>;

    /// The text of a string.
    fn text(&self) -> Option<&str>;
}

impl<T: Value> Field for T {
    fn set(&mut self, json: Json) -> Result<(), Vec<Violation>> {
        *self = T::read(json)?;
        Ok(())
    }

    fn json(&self) -> Option<Json> {
        self.write()
    }

    fn text(&self) -> Option<&str> {
        self.as_text()
    }
}

/// The members of a message type, besides the base keys.
pub trait Content: Record {
    /// The type string.
    const TYPE: &'static str;
}

impl<T: Record> Value for T {
    const SHAPE: Shape = Shape::Record(T::members);

    fn read(value: Json) -> Result<Self, Vec<Violation>> {
        T::from_object(Object::read(value)?)
    }

    fn write(&self) -> Option<Json> {
        Some(self.to_object().into())
    }
}

/// Declares types by a table of their members: name, type, and the default if there is
/// one. A member without a default is required. A string before the name of the type makes it a message type; a
/// function after `if` checks the members together.
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
            /// Additional members.
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
                    name: [$($wire,)? stringify!($member)][0],
                    shape: <$type as super::value::Value>::SHAPE,
                    presence: super::shape::WhenAbsent::of(&[$(stringify!($default))?]),
                },)*];
                MEMBERS
            }

            fn parts(&self) -> (Vec<&dyn super::record::Field>, &crate::json::Object) {
                (vec![$(&self.$member),*], &self.extras)
            }

            fn parts_mut(&mut self) -> (Vec<&mut dyn super::record::Field>, &mut crate::json::Object) {
                (vec![$(&mut self.$member),*], &mut self.extras)
            }

            $(fn check(&self) -> Result<(), super::value::Violation> {
                $check(self)
            })?
        }

        $(impl super::record::Content for $name {
            const TYPE: &'static str = $type_name;
        })?
    )*};
}

/// The value of a member that is left out, or of a required one before it is set.
macro_rules! default_of {
    ({}) => {
        super::value::preset(crate::json::Object::new())
    };
    ([]) => {
        super::value::preset(crate::json::Array::default())
    };
    ($literal:literal) => {
        super::value::preset($literal)
    };
    // A required member, `null`, `now`, `new_id`, and `default` for the first of a set of words.
    ($($word:ident)?) => {
        Default::default()
    };
}

/// Declares enumerations of string values.
macro_rules! member_words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $word:literal,)+ })+) => {
        wire_enum! {
            $($(#[$doc])* #[derive(Default)] $name { $($(#[$value_doc])* $value = $word,)+ })+
        }

        $(impl super::value::Value for $name {
            const SHAPE: super::shape::Shape =
                super::shape::Shape::OneOf(<Self as crate::wire_enum::WireEnum>::NAMES);

            fn read(value: crate::json::Json) -> Result<Self, Vec<super::value::Violation>> {
                super::value::parse_name(&value)
            }

            fn write(&self) -> Option<crate::json::Json> {
                Some(self.as_str().into())
            }
        })+
    };
}
