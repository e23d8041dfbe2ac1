//! Operations with the roles that they need, read from the OpenAPI document.

use std::collections::HashMap;

use crate::fanout::Fanout;
use crate::role::Role;
use axum::http::Method;
use serde_json::Value;

/// Operations of all routes, as the gate uses them.
#[derive(Debug, Default)]
pub struct Operations {
    by_path: HashMap<String, Vec<Operation>>,
}

/// One method of one path.
#[derive(Debug)]
pub struct Operation {
    pub method: Method,
    /// Required role; `None`: no token is needed.
    pub role: Option<Role>,
    /// Names of the query parameters.
    pub query: Vec<String>,
    /// Fanout; `None`: only this node itself can be asked.
    pub fanout: Option<Fanout>,
}

impl Operations {
    /// Reads the operations of a document. An operation without a role needs the greatest one.
    ///
    /// # Errors
    /// The document is not JSON.
    pub fn of(document: &str) -> serde_json::Result<Self> {
        let json: Value = serde_json::from_str(document)?;
        let mut by_path = HashMap::new();
        for (path, item) in json["paths"].as_object().into_iter().flatten() {
            let operations = item.as_object().into_iter().flatten().filter_map(operation).collect();
            by_path.insert(path.clone(), operations);
        }
        Ok(Self { by_path })
    }

    /// Returns the operations of a path as the router matched it; `None` for an unknown path.
    pub fn at(&self, path: &str) -> Option<&[Operation]> {
        self.by_path.get(path).map(Vec::as_slice)
    }
}

fn operation((method, operation): (&String, &Value)) -> Option<Operation> {
    let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).ok()?;
    let role = match operation["security"].as_array().map(Vec::as_slice) {
        Some([Value::Object(none)]) if none.is_empty() => None,
        Some([Value::Object(one)]) => Some(role(one.get("token"))),
        _ => Some(Role::Admin),
    };
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let query = parameters
        .filter(|parameter| parameter["in"] == "query")
        .filter_map(|parameter| parameter["name"].as_str().map(str::to_owned))
        .collect();
    let fanout = operation["operationId"].as_str().and_then(Fanout::of);
    Some(Operation { method, role, query, fanout })
}

fn role(scopes: Option<&Value>) -> Role {
    let name = scopes.and_then(|scopes| scopes[0].as_str());
    name.and_then(Role::named).unwrap_or(Role::Admin)
}
