//! Who may use the admin side. The rule is the dashboard's, so that its page and scripts are judged alike.

use actix_web::HttpRequest;
use actix_web::web::Data;

use crate::dashboard::http::{Dashboard, Denied};
use crate::error::{ApiError, Code};
use crate::gateway::By;

/// Lets an administrator in: by bearer token, by session, or without a token from loopback only. By which right.
///
/// # Errors
/// Says how to get in, or that a change may come from another site's page.
pub fn authorize(request: &HttpRequest) -> Result<By, ApiError> {
    let dashboard = request
        .app_data::<Data<Dashboard>>()
        .ok_or_else(|| ApiError::new(Code::Internal, "the admin route was reached without its state"))?;
    dashboard.authorize(request).map(|who| By(who.0)).map_err(|denied| match denied {
        Denied::Unknown => ApiError::new(
            Code::InvalidApiKey,
            "send the admin token as \"Authorization: Bearer <token>\"; without server.admin_token only loopback is \
             let in, by its own name",
        ),
        Denied::Forged => ApiError::new(Code::Forbidden, "the request does not come from the dashboard's own page"),
    })
}
