//! Opaque bytes: base64 in JSON, raw in binary formats.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Opaque bytes. Cheap to clone.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Blob(pub Bytes);

impl Blob {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::ops::Deref for Blob {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&STANDARD.encode(&self.0))
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
            let decoded = STANDARD.decode(text.as_bytes());
            return decoded
                .map(Self::from)
                .map_err(|error| Error::custom(format!("this is not base64: {error}")));
        }
        bytes(deserializer).map(Self::from)
    }
}

/// Deserializes raw bytes from a binary format.
pub(crate) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    struct Whatever;

    impl<'de> Visitor<'de> for Whatever {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }

        fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
            Ok(bytes)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<u8>, A::Error> {
            let mut bytes = Vec::new();
            while let Some(byte) = sequence.next_element()? {
                bytes.push(byte);
            }
            Ok(bytes)
        }
    }

    deserializer.deserialize_bytes(Whatever)
}

impl utoipa::PartialSchema for Blob {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Byte)))
            .description(Some("Base64"))
            .into()
    }
}

impl utoipa::ToSchema for Blob {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TaskId;

    #[test]
    fn bytes_are_base64_in_json_raw_in_messagepack() {
        let both = (TaskId([7; 16]), Blob::from(vec![0, 1, 255]));
        let json = serde_json::to_string(&both).unwrap();
        assert_eq!(json, format!("[\"{}\",\"AAH/\"]", "07".repeat(16)));
        assert_eq!(serde_json::from_str::<(TaskId, Blob)>(&json).unwrap(), both);
        let packed = rmp_serde::to_vec_named(&both).unwrap();
        assert!(packed.len() < 30);
        assert_eq!(rmp_serde::from_slice::<(TaskId, Blob)>(&packed).unwrap(), both);
    }

    #[test]
    fn invalid_base64_and_short_ids_are_refused() {
        assert!(serde_json::from_str::<Blob>("\"?\"").is_err());
        assert!(rmp_serde::from_slice::<TaskId>(&rmp_serde::to_vec(&Blob::from(vec![1; 15])).unwrap()).is_err());
    }
}
