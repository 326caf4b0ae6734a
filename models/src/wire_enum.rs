//! Enumerations with a name on the wire for each value.

/// An enumeration with a name on the wire for each value.
pub trait WireEnum: Copy + 'static {
    /// Every value, in the order of the source.
    const VALUES: &'static [Self];
    /// The names of the values.
    const NAMES: &'static [&'static str];

    /// The name of a value.
    fn as_str(self) -> &'static str;

    /// The value with a name.
    fn parse(name: &str) -> Option<Self> {
        let mut values = Self::VALUES.iter().copied();
        values.find(|value| value.as_str() == name)
    }
}

/// Declares enumerations with a name on the wire for each value.
#[macro_export]
macro_rules! wire_enum {
    ($(
        $(#[$doc:meta])*
        $name:ident {
            $($(#[$value_doc:meta])* $value:ident = $wire:literal,)+
        }
    )+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $(
                $(#[$value_doc])*
                #[doc = concat!("`", $wire, "`.")]
                $value,
            )+
        }

        impl $name {
            /// Every value, in the order of the source.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// The name, which is stable.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $wire),+
                }
            }

            /// The value with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                $crate::wire_enum::WireEnum::parse(name)
            }
        }

        impl $crate::wire_enum::WireEnum for $name {
            const VALUES: &'static [Self] = Self::ALL;
            const NAMES: &'static [&'static str] = &[$($wire),+];

            fn as_str(self) -> &'static str {
                self.as_str()
            }
        }
    )+};
}
