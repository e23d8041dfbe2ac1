//! The OpenAPI document: generated from the routes, completed with the parts that all of them share.

use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    Components, Content, InfoBuilder, LicenseBuilder, ObjectBuilder, OpenApi, Ref, RefOr, Required, Response,
    Type,
};
use utoipa::{PartialSchema as _, ToSchema as _};

use crate::fanout::Fanout;
use crate::problem::{FieldProblem, ProblemDocument};

/// Returns the document of all routes.
pub fn document() -> OpenApi {
    crate::routes::document()
}

/// Adds the parts that no route declares: origin, authentication, and the form of a refusal.
pub(crate) fn complete(mut document: OpenApi) -> OpenApi {
    document.info = InfoBuilder::new()
        .title("Meridian")
        .version("1")
        .description(Some(
            "API to operate a node. Refusals are problem documents (RFC 9457). The security requirement of \
             an operation names the role that it needs. A token of a key has a role, and so has the session of an \
             account: `POST /api/v1/login` sets a cookie for pages of this server. No role is needed while there is \
             no API key and no account, and the server is bound to a loopback address. Lists come in pages: continue with `cursor` until \
             `next` is null. A request that changes something needs `Content-Type: application/json`. In a \
             cluster, requests about clients and subscriptions are answered for all nodes; `missing` in an \
             answer names those that did not answer. Users, rules, bans, keys, actions, links to other clusters and \
             settings of the cluster change when a majority of the cores agrees. Otherwise the answer is 503 with `Retry-After`: \
             `not-committed` means that nothing has changed; `undecided` means that the change may be in \
             effect, so check before you try again.",
        ))
        .license(Some(LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build()))
        .build();
    let components = document.components.get_or_insert_with(Components::new);
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("Token that `meridian key add` or `POST /api/v1/keys` shows once."))
        .build();
    components.add_security_scheme("token", SecurityScheme::Http(token));
    components.schemas.insert("Problem".to_owned(), ProblemDocument::schema());
    components.schemas.insert(FieldProblem::name().into_owned(), FieldProblem::schema());
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            add_problem(operation);
            add_node(operation);
        }
    }
    document
}

fn add_problem(operation: &mut Operation) {
    let mut response = Response::new("A problem document with the reason and the remedy");
    let content = Content::new(Some(Ref::from_schema_name("Problem")));
    response.content.insert("application/problem+json".to_owned(), RefOr::T(content));
    operation.responses.responses.insert("default".to_owned(), RefOr::T(response));
}

/// Adds the parameter `node` to an operation that can be forwarded to another node.
fn add_node(operation: &mut Operation) {
    let description = match operation.operation_id.as_deref().and_then(Fanout::of) {
        None => return,
        Some(Fanout::Local) => "Node of the cluster that answers; default: this node.",
        Some(_) => "Node of the cluster that answers; default: all nodes.",
    };
    let node = ParameterBuilder::new()
        .name("node")
        .parameter_in(ParameterIn::Query)
        .description(Some(description))
        .required(Required::False)
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .build();
    operation.parameters.get_or_insert_with(Vec::new).push(node.into());
}
