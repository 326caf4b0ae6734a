//! A TCP proxy that can be cut.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A proxy in front of one server. It ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    is_cut: watch::Sender<bool>,
    _serving: JoinSet<()>,
}

// === impl Proxy ===

impl Proxy {
    /// A proxy for the server at this address, `host:port`.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (is_cut, state) = watch::channel(false);
        let (server, mut serving) = (server.to_owned(), JoinSet::new());
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (server, mut state) = (server.clone(), state.clone());
                connections.spawn(async move {
                    tokio::select! {
                        biased;
                        _ = state.wait_for(|is_cut| *is_cut) => {}
                        () = pass(client, &server) => {}
                    }
                });
            }
        });
        Self {
            address,
            is_cut,
            _serving: serving,
        }
    }

    /// Its own address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Breaks all connections, and each new one, from now on.
    pub fn cut(&self) {
        self.is_cut.send_replace(true);
    }
}

async fn pass(mut client: TcpStream, server: &str) {
    if let Ok(mut server) = TcpStream::connect(server).await {
        // An error ends the connection.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}
