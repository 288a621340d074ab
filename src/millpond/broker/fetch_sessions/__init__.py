"""What is kept between the fetches of a consumer or a follower."""
