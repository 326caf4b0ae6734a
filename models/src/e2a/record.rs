//! Generates types, with their readers and writers, from tables of members.

use crate::e2a::error::E2aError;
use crate::e2a::read::Members;
use crate::e2a::write::{Form, Writer};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

/// The value of a member: how it is read, and how it is written.
pub(super) trait Member: Sized {
    /// Reads the member; the default if it is absent or null.
    fn read(members: Members<'_>, name: &str, default: Self) -> Result<Self, E2aError>;

    fn write(&self, name: &'static str, writer: &mut Writer);
}

/// Declares types by a table of their members, in the order in which they are written: name, type, the default if it
/// differs from that of the type, and after `by` a custom reader. The name after
/// `with` is the field for additional members, except for legacy ones.
macro_rules! records {
    ($(
        $(#[$doc:meta])*
        $name:ident $(with $extras:ident but [$($older:literal),+])? {
            $(
                $(#[$member_doc:meta])*
                $member:ident $(as $wire:literal)?: $type:ty $(= $default:expr)? $(, by $read:expr)?;
            )+
        }
    )+) => {$(
        $(#[$doc])*
        pub struct $name {
            $($(#[$member_doc])* pub $member: $type,)+
            $(
                /// Top-level members that the protocol does not know; neither form writes them.
                pub $extras: crate::json::Object,
            )?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($member: crate::e2a::record::or_default!($($default)?),)+
                    $($extras: crate::json::Object::new(),)?
                }
            }
        }

        impl $name {
            pub(in crate::e2a) fn read_members(
                members: crate::e2a::read::Members<'_>,
            ) -> Result<Self, crate::e2a::E2aError> {
                let default = Self::default();
                let _names = [$([$($wire,)? stringify!($member)][0]),+];
                Ok(Self {
                    $($member: crate::e2a::record::read_member!(
                        members, [$($wire,)? stringify!($member)][0], default.$member $(, $read)?
                    ),)+
                    $($extras: members.extras(&_names, &[$($older),+]),)?
                })
            }

            pub(in crate::e2a) fn write_members(
                &self,
                form: crate::e2a::Form,
            ) -> crate::json::Object {
                let mut writer = crate::e2a::write::Writer::new(form);
                $(crate::e2a::record::Member::write(
                    &self.$member,
                    [$($wire,)? stringify!($member)][0],
                    &mut writer,
                );)+
                writer.finish()
            }
        }
    )+};
}

macro_rules! or_default {
    () => {
        Default::default()
    };
    ($default:expr) => {
        $default
    };
}

macro_rules! read_member {
    ($members:expr, $name:expr, $default:expr) => {
        crate::e2a::record::Member::read($members, $name, $default)?
    };
    ($members:expr, $name:expr, $default:expr, $read:expr) => {
        ($read)($members)?
    };
}

/// Declares how values of these types are read, and which function of the writer writes them.
macro_rules! values {
    ($($type:ty: $write:ident, |$members:ident, $name:ident, $default:pat_param| $read:expr;)+) => {$(
        impl Member for $type {
            fn read($members: Members<'_>, $name: &str, $default: Self) -> Result<Self, E2aError> {
                $read
            }

            fn write(&self, name: &'static str, writer: &mut Writer) {
                writer.$write(name, self.clone());
            }
        }
    )+};
}

pub(super) use {or_default, read_member, records, values};

values! {
    Text: always, |members, name, default| Ok(members.text(name)?.unwrap_or(default));
    Option<Text>: member, |members, name, _| members.text(name);
    Object: member, |members, name, _| members.free_object(name);
    Vec<Json>: member, |members, name, _| members.array(name);
    Json: always, |members, name, _| Ok(members.get(name).cloned().unwrap_or_default());
    i64: always, |members, name, default| Ok(members.integer(name)?.unwrap_or(default));
    f64: always, |members, name, default| Ok(members.double(name)?.unwrap_or(default));
}

impl Member for bool {
    fn read(members: Members<'_>, name: &str, default: Self) -> Result<Self, E2aError> {
        Ok(members.flag(name)?.unwrap_or(default))
    }

    fn write(&self, name: &'static str, writer: &mut Writer) {
        if *self || writer.form() == Form::Full || name != "is_stream" {
            writer.always(name, *self);
        }
    }
}

/// A present object is written in both forms, because an empty one does not read as absent.
impl Member for Option<Object> {
    fn read(members: Members<'_>, name: &str, _: Self) -> Result<Self, E2aError> {
        members.optional_object(name)
    }

    fn write(&self, name: &'static str, writer: &mut Writer) {
        match self {
            Some(object) => writer.always(name, object.clone()),
            None => writer.member(name, Json::Null),
        }
    }
}
