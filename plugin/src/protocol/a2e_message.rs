//! placeholder
use crate::protocol::Kind;
pub(crate) fn is_known_type(_ty: &str) -> bool {
    false
}
pub(crate) fn operation(ty: &str) -> &str {
    match ty {
        "pong" => "ping",
        _ => ty
            .strip_suffix("/req")
            .or_else(|| ty.strip_suffix("/resp"))
            .unwrap_or(ty),
    }
}
pub(crate) fn kind_of(ty: &str, has_req_id: bool) -> Kind {
    let _ = has_req_id;
    if ty.ends_with("/req") {
        Kind::Request
    } else {
        Kind::Response
    }
}
pub(crate) fn capability(_ty: &str) -> Option<&'static str> {
    None
}
pub(crate) fn is_event(ty: &str) -> bool {
    ty.ends_with("/event")
}
