//! Location of a store.

use std::fmt;
use std::path::{Path, PathBuf};

use dayfly_protocol::error::{Code, Failure};
use url::Url;

/// Kind of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A bucket, or a prefix in it, of any S3-compatible service.
    S3,
    /// A directory that all hosts see.
    File,
    /// A Redis server.
    Redis,
}

impl Kind {
    /// The kind's name for users.
    pub fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::File => "file",
            Self::Redis => "redis",
        }
    }
}

/// A store's URL: `s3://bucket/prefix`, `file:///directory`, `redis://host:port/database` or `rediss://` for TLS.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    kind: Kind,
    url: Url,
}

impl StoreUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] when it is not a store's URL.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        // Do not repeat a malformed URL, because it may contain a password.
        let wrong = |what: &str| {
            let text = format!(
                "the store's URL {what}; write s3://bucket/prefix, redis://host:port/database, rediss://... or file:///directory"
            );
            Failure::new(Code::InvalidRequest, text)
        };
        let url = Url::parse(text).map_err(|error| wrong(&format!("cannot be read ({error})")))?;
        let kind = match url.scheme() {
            "s3" => Kind::S3,
            "file" => Kind::File,
            "redis" | "rediss" => Kind::Redis,
            other => return Err(wrong(&format!("begins with {other}://, which no kind of store has"))),
        };
        let place = Self { kind, url };
        match kind {
            Kind::File if place.directory().is_none() => Err(wrong("names no directory of this host")),
            Kind::S3 | Kind::Redis if place.url.host_str().is_none_or(str::is_empty) => {
                Err(wrong("names no host or bucket"))
            }
            Kind::S3 if place.url.query().is_some() || !place.url.username().is_empty() => Err(wrong(
                "has more than bucket and prefix; set the rest by AWS_* variables",
            )),
            _ => Ok(place),
        }
    }

    /// Returns the place of a directory of this host. The path must be absolute.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] when the path is not absolute.
    pub fn of_directory(path: &Path) -> Result<Self, Failure> {
        let url = Url::from_file_path(path).map_err(|()| {
            let text = format!("{} is not an absolute path", path.display());
            Failure::new(Code::InvalidRequest, text)
        })?;
        Ok(Self { kind: Kind::File, url })
    }

    /// Kind of the store.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the complete URL, including secrets.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    pub(crate) fn parsed(&self) -> &Url {
        &self.url
    }

    /// Returns the path of the directory, or `None` for another kind of store.
    pub fn directory(&self) -> Option<PathBuf> {
        let path = self.url.to_file_path().ok()?;
        (self.kind == Kind::File).then_some(path)
    }
}

impl fmt::Display for StoreUrl {
    /// Omits user, password and options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.url.scheme(), self.url.host_str().unwrap_or_default())?;
        if let Some(port) = self.url.port() {
            write!(f, ":{port}")?;
        }
        f.write_str(self.url.path().trim_end_matches('/'))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_url_omits_the_password() {
        let place = StoreUrl::parse("rediss://user:hunter2@cache.example.org:6380/3").unwrap();
        assert_eq!(place.kind(), Kind::Redis);
        assert_eq!(place.to_string(), "rediss://cache.example.org:6380/3");
        assert!(!format!("{place:?}").contains("hunter2"));
        assert!(place.url().contains("hunter2"));
    }

    #[test]
    fn bucket_and_directory_urls_are_parsed() {
        let bucket = StoreUrl::parse("s3://bucket/some/prefix/").unwrap();
        assert_eq!(
            (bucket.kind(), bucket.to_string().as_str()),
            (Kind::S3, "s3://bucket/some/prefix")
        );
        let directory = StoreUrl::parse("file:///shared/runs").unwrap();
        assert_eq!(directory.directory(), Some(PathBuf::from("/shared/runs")));
        assert_eq!(bucket.directory(), None);
    }

    #[test]
    fn invalid_url_is_refused_without_repeating_it() {
        for wrong in [
            "",
            "bucket/prefix",
            "https://user:hunter2@bucket/",
            "s3:///prefix",
            "s3://user:hunter2@bucket",
            "redis://",
            "file://host/dir",
        ] {
            let failure = StoreUrl::parse(wrong).unwrap_err();
            assert_eq!(failure.code, Code::InvalidRequest, "{wrong}");
            assert!(!failure.message.contains("hunter2"), "{failure}");
        }
    }
}
