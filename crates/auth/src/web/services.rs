//! HTTP services of a node.

use std::sync::Arc;

use access::{Action, Identity, RetryAuthorize};

use crate::authority::Source;
use crate::opinion::Opinion;
use crate::web::acl::{AclChange, HttpAcl};
use crate::web::figures::ServiceFigures;
use crate::web::link::{HttpLink, LinkChange};
use crate::web::service::ServiceError;
use crate::web::settings::{HttpAclSettings, HttpAuthSettings};

/// Configured services. Clones refer to the same services.
#[derive(Clone, Debug, Default)]
pub struct HttpServices {
    link: Option<Arc<HttpLink>>,
    acl: Option<Arc<HttpAcl>>,
}

/// Settings and files that were read, are usable, and are not in force yet.
pub struct ServicesChange<'a> {
    link: Option<LinkChange<'a>>,
    acl: Option<AclChange<'a>>,
}

impl ServicesChange<'_> {
    /// Puts the changes in force.
    pub fn apply(self) {
        if let Some(link) = self.link {
            link.apply();
        }
        if let Some(acl) = self.acl {
            acl.apply();
        }
    }
}

impl HttpServices {
    pub const NONE: Self = Self { link: None, acl: None };

    /// Opens the services; opens no connection yet.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn open(auth: &HttpAuthSettings, acl: &HttpAclSettings) -> Result<Self, ServiceError> {
        Ok(Self { link: HttpLink::open(auth)?.map(Arc::new), acl: HttpAcl::open(acl)?.map(Arc::new) })
    }

    /// Reads new settings for the existing services, with the current contents of their files.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn read(
        &self,
        auth: &HttpAuthSettings,
        acl: &HttpAclSettings,
    ) -> Result<ServicesChange<'_>, ServiceError> {
        let link = self.link.as_ref().map(|link| link.read(auth)).transpose()?.flatten();
        let acl = self.acl.as_ref().map(|source| source.read(acl)).transpose()?.flatten();
        Ok(ServicesChange { link, acl })
    }

    pub fn link(&self) -> Option<&Arc<HttpLink>> {
        self.link.as_ref()
    }

    pub fn acl(&self) -> Option<&Arc<HttpAcl>> {
        self.acl.as_ref()
    }

    /// Returns the counters by the name of the configuration section. Those of a service that is not configured are 0.
    pub fn figures(&self) -> [(&'static str, ServiceFigures); 2] {
        let link = self.link.as_ref().map(|link| link.figures());
        let acl = self.acl.as_ref().map(|acl| acl.figures());
        [("http_auth", link.unwrap_or_default()), ("http_acl", acl.unwrap_or_default())]
    }
}

impl Source for Arc<HttpAcl> {
    fn opinion(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Opinion {
        self.decide(identity, action, topic, later)
    }
}
