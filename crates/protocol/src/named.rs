//! Enums whose variants have a name: in JSON, on the command line and in the store.

/// A text is not the name of any variant of an enum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {kind}: expected one of {expected}")]
pub struct UnknownName {
    text: String,
    kind: &'static str,
    expected: String,
}

impl UnknownName {
    pub(crate) fn new(text: &str, kind: &'static str, names: &[&str]) -> Self {
        Self {
            text: crate::text::line(text, 80),
            kind,
            expected: names.join(", "),
        }
    }
}

/// Defines an enum with a name for each variant. JSON uses the same names. An unknown name is an [`UnknownName`].
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        $name:ident, $kind:literal {
            $($(#[$variant_meta:meta])* $variant:ident = $text:tt,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// All variants, in the order of their definition.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// The variant's name in JSON, on the command line and in the store.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// Returns the variant with this name, or `None`.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::named::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::from_name(text).ok_or_else(|| $crate::named::UnknownName::new(text, $kind, &[$($text),+]))
            }
        }
    };
}

pub(crate) use named_enum;

#[cfg(test)]
mod tests {
    use crate::api::LeaseState;

    #[test]
    fn every_name_is_read_back_as_its_variant() {
        for state in LeaseState::ALL {
            assert_eq!(state.name().parse(), Ok(state));
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{state}\""));
        }
    }

    #[test]
    fn unknown_name_error_lists_the_names() {
        let unknown = "alive\n".parse::<LeaseState>().unwrap_err().to_string();
        assert!(unknown.contains("`alive\\n` is not a lease state"), "{unknown}");
        assert!(
            unknown.ends_with("granted, active, released, expired, revoked, lost"),
            "{unknown}"
        );
        let unknown = serde_json::from_str::<LeaseState>("\"alive\"").unwrap_err().to_string();
        assert!(unknown.contains("unknown variant `alive`"), "{unknown}");
    }
}
