//! Object stores: files under `s3://`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result as QueryResult, plan_err};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use dayfly_protocol::error::{Code, Failure};
use dayfly_storage::open_bucket;
use object_store::ObjectStore;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use url::Url;

/// How object stores are reached. All ranks of a session, and its own process, have the same.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoreOptions(BTreeMap<String, String>);

impl StoreOptions {
    /// Options by name, as the crate `object_store` has them: `aws_access_key_id`, `aws_secret_access_key`,
    /// `aws_region`, `aws_endpoint_url` and so on.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] if there is no such option.
    pub fn new(options: BTreeMap<String, String>) -> Result<Self, Failure> {
        match options.keys().find(|name| AmazonS3ConfigKey::from_str(name).is_err()) {
            Some(name) => Err(Failure::new(
                Code::InvalidRequest,
                format!("{name:?} is no option of an object store: write aws_region, for example"),
            )),
            None => Ok(Self(options)),
        }
    }

    /// Whether there is an option of this name.
    pub fn knows(name: &str) -> bool {
        AmazonS3ConfigKey::from_str(name).is_ok()
    }

    fn s3(&self, url: &Url) -> QueryResult<Arc<dyn ObjectStore>> {
        if self.0.is_empty() {
            // Without any, the client would look for a service of Amazon's machines, for seconds.
            return plan_err!(
                "the session has no options to reach {url}: open it with storage_options=\"env\", which sends the AWS_... \
                 variables of your process to the workers, or with a mapping"
            );
        }
        let mut builder = AmazonS3Builder::new();
        for (name, value) in &self.0 {
            builder = builder.with_config(AmazonS3ConfigKey::from_str(name)?, value);
        }
        let bucket = url.host_str().filter(|bucket| !bucket.is_empty());
        let bucket = bucket.ok_or_else(|| {
            let message = format!("the address {url} names no bucket: write s3://BUCKET/PATH");
            Failure::new(Code::InvalidRequest, message)
        });
        let opened = bucket.and_then(|bucket| open_bucket(bucket, builder, url));
        opened
            .map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            .map_err(|failure| DataFusionError::External(Box::new(failure)))
    }
}

impl fmt::Debug for StoreOptions {
    /// Without values, which are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The object stores of a process. A bucket's is made when it is first used.
#[derive(Debug)]
pub struct Stores {
    options: StoreOptions,
    made: DefaultObjectStoreRegistry,
}

impl Stores {
    pub fn new(options: StoreOptions) -> Self {
        Self {
            options,
            made: DefaultObjectStoreRegistry::new(),
        }
    }
}

impl ObjectStoreRegistry for Stores {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.made.register_store(url, store)
    }

    fn get_store(&self, url: &Url) -> QueryResult<Arc<dyn ObjectStore>> {
        let scheme = url.scheme();
        match self.made.get_store(url) {
            Ok(store) => Ok(store),
            Err(_) if matches!(scheme, "s3" | "s3a") => {
                let store = self.options.s3(url)?;
                self.made.register_store(url, Arc::clone(&store));
                Ok(store)
            }
            Err(_) => plan_err!("there is no store for {scheme}:// addresses: files are local, or below s3://"),
        }
    }
}
